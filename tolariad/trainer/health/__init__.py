"""What is watched while training: the detector, state that a skipped pass must leave as it was, time, memory."""
