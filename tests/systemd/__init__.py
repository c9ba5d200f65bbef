"""The unit files, checked by the service manager's own tools if they are installed."""
