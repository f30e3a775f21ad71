"""Which files of a Delta table nothing needs any more, and how they are deleted."""
