"""The configuration: its model, how it is read, its page."""
