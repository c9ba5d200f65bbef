"""The architecture ledger: the changes of the model's shape that a run made and recorded."""
