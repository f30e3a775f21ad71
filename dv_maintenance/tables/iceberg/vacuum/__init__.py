"""Which snapshots have expired, what the others reach, and the removal of the rest."""
