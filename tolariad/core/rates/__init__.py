"""Learning rates as the journal knows them: orders, changes, plateaus."""
