"""Tasks: the Task protocol, how a task is found, its hooks, and the built-in tasks."""
