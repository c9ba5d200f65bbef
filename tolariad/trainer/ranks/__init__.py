"""Training over several processes: what belongs to the ranks of a group and not to one trainer."""
