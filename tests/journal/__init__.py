"""Tests of the journal, one failure class at a time."""
