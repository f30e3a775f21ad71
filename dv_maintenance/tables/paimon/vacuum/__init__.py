"""Find and delete the snapshots and files of a Paimon table that nothing needs any more."""
