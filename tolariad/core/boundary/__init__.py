"""The boundary: the numbered list of orders that the trainer obeys there, and the end of an epoch."""
