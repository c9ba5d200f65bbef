"""Orders of operators, signals, and facts that are recorded as they arrive."""
