"""Learning rates: closed-form functions of the step, lr = f(group, step), in Python floats.

Promises: the rate of step n is always the same. The run may have reached n without a stop, may have resumed before it,
or may only be read about.
"""
