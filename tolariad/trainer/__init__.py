"""The trainer: the only package that imports torch. It obeys orders at step boundaries and reports what it did.

Promises: importing the package itself does not load torch. No update begins while the page forbids it. The same
configuration, seed and environment give the same bits, interrupted or not.
"""
