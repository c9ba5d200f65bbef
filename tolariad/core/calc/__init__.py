"""Calculations: values and pure functions that know no message and no state."""
