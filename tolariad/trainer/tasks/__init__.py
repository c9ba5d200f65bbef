"""What is trained: the Task protocol, finding a task, its hooks, and the built-in tasks."""
