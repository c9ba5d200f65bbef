"""Learning rates: closed-form functions of the step, lr = f(group, step), in Python floats.

Promises: the rate of step n is the same if the run reached n without a stop, resumed before it, or is only being read
about.
"""
