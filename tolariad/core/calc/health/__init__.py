"""Breakers, budgets and histograms, as values."""
