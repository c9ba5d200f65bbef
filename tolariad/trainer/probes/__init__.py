"""Trials on a copy, in a process of their own and without a run: cost, test data, learning rates, a profile.

Promises: importing the package itself does not load torch. No file of a run is changed.
"""
