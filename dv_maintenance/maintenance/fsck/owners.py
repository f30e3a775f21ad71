"""Files that a table names and another one owns: those of a shallow clone are its source's, which does not know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.remedies import run, setting
from dv_maintenance.storage import Storage
from dv_maintenance.tables.fsck import Repair
from dv_maintenance.tables.registry import detect

if TYPE_CHECKING:
    from dv_maintenance.tables.table import Table


def owners_of(table: Table, paths: Iterable[str]) -> dict[str, Storage]:
    """The tables that hold those of the ``paths`` that are outside of this table, by path; absent if there is none or
    it can't be looked for.
    """
    known: dict[str, Storage | None] = {}
    found = {path: _owner(path, table.storage.options, known) for path in paths if "://" in path}
    return {path: owner for path, owner in found.items() if owner is not None}


def _owner(uri: str, options: Mapping[str, str], known: dict[str, Storage | None]) -> Storage | None:
    """The closest table above a file."""
    folder = uri.rpartition("/")[0]
    if folder.endswith("/") or "://" not in folder:
        return None
    if folder not in known:
        try:
            storage = Storage(folder, options)
            known[folder] = storage if detect(storage) else _owner(folder, options, known)
        except DvMaintenanceError:
            known[folder] = None
    return known[folder]


def remedies_of_owners(owners: Mapping[str, Storage], clone: str) -> tuple[list[Repair], list[Repair]]:
    """How missing files of other tables come back: without a loss, and with one. ``owners``: as from ``owners_of``."""
    from dv_maintenance.tables.quarantine import quarantined

    undone, cloned = [], []
    protect = f"name this clone in its vacuums ({setting('clones', clone)})"
    for owner in {storage.uri: storage for storage in owners.values()}.values():
        paths = [path.removeprefix(f"{owner.uri}/") for path, of in owners.items() if of.uri == owner.uri]
        if aside := len(quarantined(owner, paths)):
            what = f"A vacuum of {owner.uri} set {aside:,} of the missing files aside: put them back, and {protect}."
            undone.append(Repair(what, run("undelete", owner.uri), "Nothing."))
        what = f"{owner.uri} was vacuumed without regard to this clone: clone it again, and {protect}."
        lost = "What was changed in this clone, and what its source has deleted since."
        cloned.append(Repair(what, None, lost))
    return undone, cloned
