"""Training data: feeds whose order is a function of (rng_seed, epoch), loaders, random draws."""
