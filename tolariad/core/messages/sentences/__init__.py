"""The sentence of every event, a file a concern."""
