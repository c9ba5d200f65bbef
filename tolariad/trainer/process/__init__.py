"""The trainer as a process: its start, what must not outlive it, its end, and what fixes its bits."""
