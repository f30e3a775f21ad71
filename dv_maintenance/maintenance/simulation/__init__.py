"""What maintenance under some policy would have cost: the life of a table, replayed."""
