"""Monitoring while training: the detector, the backup for skipped steps, times and memory."""
