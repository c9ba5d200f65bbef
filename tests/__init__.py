"""A package, so that `tests` can never mean what another distribution left behind under that name."""
