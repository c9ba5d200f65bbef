"""Rates of the encoder: warm-up and a line."""


def warm_linear(step, steps, warm=4):
    return (step + 1) / warm if step < warm else (steps - step) / (steps - warm)
