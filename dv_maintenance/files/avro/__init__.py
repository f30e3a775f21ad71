"""Avro container files: schemas, reading, writing, and their records as Arrow batches."""
