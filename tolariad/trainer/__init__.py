"""The trainer: the only room that imports torch. It obeys orders at step boundaries and reports what it did.

Promises: importing this package alone loads no torch; no update begins while the page forbids it; the same
configuration, seed and environment give the same bits, interrupted or not.
It must not know: the journal, the daemon, or that there is a socket to the outside.
"""
