"""Versions of a Lance table: manifests, transactions, tags, branches and history."""
