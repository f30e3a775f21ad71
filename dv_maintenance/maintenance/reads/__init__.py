"""How often a table is read: observed in Spark's event logs, observed through downstream assets, or declared."""

from __future__ import annotations

from dv_maintenance.maintenance.reads.model import Reads, contradiction

__all__ = ["Reads", "contradiction"]
