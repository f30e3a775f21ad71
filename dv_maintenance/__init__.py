"""Purge deletion vectors, vacuum expired files and write manifests, as Dagster assets on Spark."""

__version__ = "0.1.0"
