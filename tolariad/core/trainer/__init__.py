"""The trainer's life: starts, deaths, restarts."""
