"""Changes of the model's shape while it trains: made in a hook, recorded, repeated on a model that was built anew, undone."""

from tolariad.trainer.architecture.ledger import Change, Ledger, as_built

__all__ = ["Change", "Ledger", "as_built"]
