"""Learning rates as recorded in the journal: orders, changes, plateaus."""
