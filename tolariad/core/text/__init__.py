"""Text that people read: an event's sentence, what the run says at once, plain JSON values, names that were meant."""
