"""The parts of a run's state. `whole.py` lists them; `part.py` says what a part can do; each has a file here.

Promises: a capture, a restore, its comparison and the table of orders are loops over that list, and name no part.
"""
