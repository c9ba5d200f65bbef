"""The unit files, checked by the service manager's own tools where they are installed."""
