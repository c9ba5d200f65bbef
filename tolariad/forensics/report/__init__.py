"""A run, or two, as one page that needs nothing else: no server, no network, no other file."""
