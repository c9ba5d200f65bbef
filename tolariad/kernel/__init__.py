"""The recorder: one thread that takes turns. A turn drains inputs, decides, applies, commits one frame and publishes.

Invariants. Each is kept in the function named after it (a function of `recorder` if no module is given):

1. Nothing is done, answered or shown before it is durable. `decide` sees `head`, which includes this turn's events.
   Answers, effects, streams and the page follow `durable`, which becomes `head` when the frame is on disk. If the frame
   can never be written, `head` goes back to `durable` (`_commit`).
2. `apply` never refuses an event; only `decide` refuses (core.state.run_state, core.rules.table.decide).
3. Replay runs `apply` only. After a replay, each operation that a crash left open gets its closing event
   (core.state.replay, core.rules.table.reactions `Opened`).
4. An operation has two events: begun, then committed or aborted. A level, such as whether the gate is open, is read
   again from the durable state after every turn (`trainer_link.show_durable`).
5. Clock readings, random numbers and ids enter as fields of inputs. A turn reads the clock once (`_turn`).
6. Every event carries its cause, the root of its causal chain and, if somebody ordered it, the actor (core.engine).
7. A report of another incarnation never reaches `decide` (channel.Reports). Everything that a dead trainer had sent is
   decided before its death is (`_turn`).
"""

from tolariad.kernel.recorder import Kernel
from tolariad.kernel.turn import Published

__all__ = ["Kernel", "Published"]
