"""What the metadata of an Iceberg table says."""
