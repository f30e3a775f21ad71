"""Live files of a Paimon table and what they hold: types, partitions, column families, formats."""
