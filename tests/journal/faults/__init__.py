"""Attacks on the journal, by fault class. Each has a short form in `make test` and a full one in `make torture`."""
