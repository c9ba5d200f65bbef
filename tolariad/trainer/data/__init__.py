"""Training data: feeds with a repeatable order, loaders, random draws."""
