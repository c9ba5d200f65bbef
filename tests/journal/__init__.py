"""Tests of the journal: disasters with names."""
