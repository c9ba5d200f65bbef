"""Rates of the language model: warm-up and cosine."""

import math


def warm_cosine(step, steps, warm=4):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
