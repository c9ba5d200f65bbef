"""Changes of the model's shape while it trains: make them in a hook, record, repeat and undo them."""

from tolariad.trainer.architecture.ledger import Change, Ledger, as_built

__all__ = ["Change", "Ledger", "as_built"]
