"""The configuration: its model, and how it is read."""
