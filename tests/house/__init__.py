"""The house rules, held by tests: who may import whom, how long things are, what is never written."""
