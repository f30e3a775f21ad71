"""Which snapshots and files of a Paimon table nothing needs any more, and how they are deleted."""
