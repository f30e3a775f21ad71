"""For authors of table formats: what a format implements, how it is registered, and the suite that it must pass.

A format registers itself with :func:`register`, or by an entry point in the group ``dv_maintenance.table_formats`` that
names a :class:`TableFormat`. CONTRIBUTING.md, "How a format is added", has the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dv_maintenance.tables import capabilities
from dv_maintenance.tables.registry import CatalogTable, Location, NamedTable, TableFormat, at_root, formats, register
from dv_maintenance.tables.table import CommitOutcome, Rebased, Replacement, SkippingTable, Table

if TYPE_CHECKING:
    from dv_maintenance.testing.backends import TableBackend
    from dv_maintenance.testing.contract import TableContract

__all__ = [
    "CatalogTable",
    "CommitOutcome",
    "Location",
    "NamedTable",
    "Rebased",
    "Replacement",
    "SkippingTable",
    "Table",
    "TableBackend",
    "TableContract",
    "TableFormat",
    "at_root",
    "capabilities",
    "formats",
    "register",
]

_TESTING = {"TableBackend": "backends", "TableContract": "contract"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _TESTING:
        # They need the extra `testing`.
        return getattr(import_module(f"dv_maintenance.testing.{_TESTING[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
