"""Commits to a Paimon table: rewrites, deletes, index files, and the snapshot that publishes them."""
