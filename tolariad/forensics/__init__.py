"""Timeline, state at, why: questions to a journal, answered from its bytes alone.

Promises: reads journals and never writes one; answers are data, the command line puts them into words. It must not know:
the daemon, torch, the control socket.
"""
