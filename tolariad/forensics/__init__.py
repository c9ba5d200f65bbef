"""Questions to a journal, answered from its bytes alone: the timeline, the state at a moment, the reason for an event.

Promises: it reads journals and never writes one, except for the event that describes a repair. Answers are data; the
command line puts them into words.
"""
