"""Snapshots of a Paimon table: schemas, manifests, index manifests, tags, branches and history."""
