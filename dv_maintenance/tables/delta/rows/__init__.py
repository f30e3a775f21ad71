"""Live files of a Delta table and what they hold: schema, partitions, statistics, row ids, change data."""
