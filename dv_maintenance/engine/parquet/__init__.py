"""Parquet data files: row groups to read, conversion of values to the table's types, footers of new files."""
