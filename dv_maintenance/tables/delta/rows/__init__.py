"""Live files of a Delta table and their content: schema, partitions, statistics, row ids, change data."""
