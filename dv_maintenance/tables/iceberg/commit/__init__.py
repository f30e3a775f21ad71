"""Commits to an Iceberg table: new manifests, and metadata that names them."""
