"""Steps, epochs and validations: progress, branches, and steps that are run again."""
