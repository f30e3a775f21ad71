"""Avro data files: read block by block."""
