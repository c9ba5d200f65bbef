"""Followers: programs that copy a run's numbers and words from its journal to TensorBoard, MLflow or W&B.

Promises: a follower only reads the run, in a process of its own, and waits for nothing of it. Every step is written
once, also if the follower is killed at any moment and started again. What a rollback gave up stays on its own branch.
"""
