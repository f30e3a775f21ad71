"""The Dagster code location of this repository: a short module per sensor, put together in ``definitions``."""
