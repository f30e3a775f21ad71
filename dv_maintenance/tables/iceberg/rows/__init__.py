"""The live files of an Iceberg table, and what they hold."""
