"""One step: gradients, update, report; validation; and steps of the journal that are made again."""
