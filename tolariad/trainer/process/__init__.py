"""The trainer's process: its start, its children, its end, and the settings that make its results reproducible."""
