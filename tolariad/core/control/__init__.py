"""Orders of operators, signals, and facts that are recorded as they are told."""
