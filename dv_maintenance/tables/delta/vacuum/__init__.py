"""Find the files of a Delta table that nothing needs any more, and delete them."""
