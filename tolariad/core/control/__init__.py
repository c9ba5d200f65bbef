"""Orders of operators, and signals."""
