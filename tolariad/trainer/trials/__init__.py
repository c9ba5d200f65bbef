"""What is tried on a copy, in a process of its own and without a run: its cost, test data, learning rates, a profile.

Promises: importing the package itself does not load torch. No file of a run is changed.
"""
