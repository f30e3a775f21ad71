"""Avro data files: read and written block by block."""
