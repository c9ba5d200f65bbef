"""What is unwell: findings, emergencies, breakers and budgets, conservative mode, quarantine."""
