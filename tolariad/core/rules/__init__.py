"""What follows from inputs, reports and events: a file a concern. `table` lists the rules of each type."""
