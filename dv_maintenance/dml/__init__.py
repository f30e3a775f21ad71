"""DELETE, UPDATE and MERGE with deletion vectors, on Spark: it finds the rows, Arrow reads and writes the files."""
