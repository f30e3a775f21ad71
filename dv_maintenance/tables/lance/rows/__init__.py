"""Live fragments of a Lance table: schema, files and tasks."""
