"""Rollbacks: targets, phases, branches, and what is restored."""
