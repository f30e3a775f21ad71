"""Parquet data files: which row groups to read, how values become those of the table, what new footers say."""
