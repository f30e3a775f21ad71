"""Apache Paimon tables on a file system or in object storage, read from their own files."""

from dv_maintenance.tables.paimon.table import PaimonTable

__all__ = ["PaimonTable"]
