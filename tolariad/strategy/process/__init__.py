"""The side of the run: when a strategy is asked, its process, and what its commands become.

Promises: a strategy that hangs, dies, lies or floods delays training by its time limit at most.
Nothing here is imported by the process of a user's strategy.
"""
