"""Training steps: gradients, update, report; re-runs of steps in the journal; validation."""
