"""What a catalog lets its user do, for ``dvm doctor`` and for the test of a connection."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dv_maintenance import catalogs
from dv_maintenance.catalogs.kinds import CatalogSettings, kind_called
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.registry import quoted


@dataclass(frozen=True, slots=True)
class Examined:
    """One answer.

    check : what was looked at: ``catalog``, ``token``, ``table``, a right or a permission.
    found, needed : in words.
    how : who can change it, and how; "" if nothing is missing.
    """

    check: str
    ok: bool
    found: str
    needed: str
    how: str = ""


def examined(name: str, known: Mapping[str, CatalogSettings] | None = None) -> list[Examined]:
    """What a catalog says to the user of its settings. Nothing is changed.

    name : of a catalog, or of a table in one. Of a catalog, kinds without ``examined`` show only whether it answers.
    known : catalogs besides those that the environment names.

    Returns nothing if ``name`` begins with the name of no catalog, or if a file or folder is called so. Raises
    UsageError for wrong settings.
    """
    if os.path.exists(name):
        return []
    settings = catalogs.settings_of(name if "." in name else f"{name}.", known)
    if settings is None or not (catalogs.parts_of(name) or "." not in name):
        return []
    kind = kind_called(settings.type)
    if hasattr(kind, "examined"):
        return list(kind.examined(name, settings))
    return list(_located(name, kind, settings) if "." in name else _reached(name, kind, settings))


def _reached(name: str, kind: Any, settings: CatalogSettings) -> Iterator[Examined]:
    """Whether the catalog takes its user, as far as the list of its tables begins."""
    try:
        first = next(iter(kind.listed(f"{quoted([name])}.*", settings)), None)
    except DvMaintenanceError as error:
        yield _failed("catalog", error, "a catalog that answers")
    else:
        shown = "it answers" if first else "it answers, and shows no table"
        yield Examined("catalog", True, shown, "a catalog that answers")


def _located(name: str, kind: Any, settings: CatalogSettings) -> Iterator[Examined]:
    needed = "a table that the catalog shows"
    try:
        known, location = kind.located(name, settings, {})
    except DvMaintenanceError as error:
        yield _failed("table in the catalog", error, needed)
        return
    yield Examined("table in the catalog", True, f"{known} at {location.storage.uri}", needed)
    if hasattr(kind, "rights"):
        try:
            yield from kind.rights(name, settings, known)
        except DvMaintenanceError as error:
            yield _failed("rights", error, "an answer about the rights on the table")


def _failed(check: str, error: DvMaintenanceError, needed: str) -> Examined:
    return Examined(check, False, error.message, needed, str(error.next_step or "check the name"))
