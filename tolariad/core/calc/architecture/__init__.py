"""Changes of a model's shape, as values."""
