"""Text that people read: names that are near, numbers and durations in words."""
