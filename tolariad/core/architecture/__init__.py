"""The architecture ledger: the recorded changes of the model's shape."""
