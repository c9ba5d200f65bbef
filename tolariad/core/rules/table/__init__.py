"""The table: one row for each input, report and event that has consequences."""
