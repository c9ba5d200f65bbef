"""The health of a run: findings, emergencies, breakers and budgets, conservative mode, quarantine."""
