"""The house rules, checked by tests: imports, lengths, and forbidden constructs."""
