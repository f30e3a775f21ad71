"""Lance tables, read without Lance's library: it is only asked to rewrite."""

from dv_maintenance.tables.lance.table import LanceTable

__all__ = ["LanceTable"]
