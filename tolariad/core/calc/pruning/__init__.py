"""Pruning as calculations: phase and schedule, the budget over layers, and the judgement of masks."""
