"""Decide whether a step is healthy, from its loss, gradient norm, learning rate, accuracy and time. All rules are pure.

The trainer asks before each update. Every value is compared with what this run itself has done (docs/detection.md).

| observation | finding | action |
|---|---|---|
| loss or gradient norm is not finite | NON_FINITE | the step is skipped |
| the value is far above the level, its spread, and the excesses of the last 4096 steps | SPIKE | the step is skipped |
| nine steps in a row are not finite, or a lasting rise is far above any before it | SUSTAINED | rollback |
| the fifth step in a row is high in its gradient norm alone | SHIFT | record only: the update is made |
| a lasting rise is smaller than that, or the learning rate explains it | RISE | record only |
| a lasting rise is as large, but strong gradients may bring it down | EXPLAINED | record only |
| most of the logarithmic way that the loss had come down is gone, for 64 steps | LOST | record only |
| the loss is fifteen times the level and far above all excesses, two or three times in a row | EXPLOSION | emergency |
| the accuracy fell to half of its average, or to chance | COLLAPSE | rollback (`accuracy_collapsed`) |
| one step took twenty times as long as others | STALL | record only (`is_stalled`): time never changes weights |

The rules return a verdict. The kernel decides what follows from it.
"""
