"""The files that references reach: which are needed, and which only expiring references named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError
from dv_maintenance.storage import plain_uri
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.vacuum.decision import Decision, MovedError, conflict
from dv_maintenance.tables.paimon.vacuum.files import file_key
from dv_maintenance.tables.paimon.vacuum.holders import Ref
from dv_maintenance.tables.paimon.vacuum.references import MissingError, Named, ReferenceReader, is_external
from dv_maintenance.tables.reach.manifests import Ids
from dv_maintenance.tables.reach.needed import Needed

OUTSIDE: Final = "in an expired snapshot, but outside the table in a folder that its options do not name"
UNLOCATED: Final = "in an expired snapshot, but the folder of its partition is unknown: it expires by age"


@dataclass(slots=True)
class Reached:
    """The needed files, by their names in manifests.

    _is_needed : number of a data file -> whether it is needed.
    _added : references already added, identified by the files that they name.
    """

    reader: ReferenceReader
    needed: Needed = field(default_factory=Needed)
    _is_needed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    _added: set[tuple[str | bool | None, ...]] = field(default_factory=set)

    def add(self, decision: Decision, version: int) -> None:
        """Add the files that kept snapshots, tags and changelogs need, including changelogs yet to be written.
        ``version``: for errors.

        Raises
        ------
        MovedError : one of them lacks a file. Another process may be expiring it.
        DamagedTableError, UnsupportedFeatureError, RefusedError : as ``ReferenceReader.resolve``.
        """
        for name, why in decision.names():
            self.needed.add([name], why)
        new = [(ref, why) for ref, why in decision.kept() if _names(ref) not in self._added]
        try:
            for (ref, why), reached in zip(new, self.reader.resolve([ref for ref, _ in new]), strict=True):
                ids = self._without(np.union1d(reached.data, reached.changes))
                self._is_needed[ids] = True
                self.needed.add(self.reader.names(ids), why)
                self.needed.add(self.reader.extras(ids), why)
                self.needed.add((each.name for each in reached.named), why)
                self._added.add(_names(ref))
        except MissingError as missing:
            raise MovedError(_missing(self.reader.layout, version, missing)) from None

    def expired(self, refs: Sequence[Ref], kept: Counter[str]) -> list[Named]:
        """The files that expiring references named, each path once, without needed data files. ``kept`` counts files
        whose place is unknown or not the table's.
        """
        reader, named = self.reader, dict[str, Named]()
        data = changes = np.zeros(0, np.bool_)
        for reached in reader.resolve(refs, partly=True):
            if len(data) < len(reader):
                data, changes = np.zeros(len(reader), np.bool_), np.zeros(len(reader), np.bool_)
            data[reached.data], changes[reached.changes] = True, True
            named |= {each.name: each for each in reached.named}
        found = []
        for kind, which in (("data", data), ("change", changes & ~data)):
            for file in reader.files(self._without(np.flatnonzero(which))):
                folder = file.folder
                if file.external is not None:
                    path = self._outside(file.external, file.name)
                    folder = None if path is None else path.rpartition("/")[0]
                if folder is None:
                    kept[UNLOCATED if file.external is None else OUTSIDE] += 1 + len(file.extra)
                    continue
                found.append(Named(file.name, f"{folder}/{file.name}", kind, file.size))
                found += [Named(name, f"{folder}/{name}", kind, None) for name in file.extra]
        for each in named.values():
            path = each.path
            if path is not None and is_external(path):
                path = self._outside(path, each.name)
            if path is not None:
                found.append(replace(each, path=path))
            elif self.needed.why(each.name) is None:
                kept[OUTSIDE if each.path else UNLOCATED] += 1
        # A file that changed its level has two numbers.
        return list({each.path: each for each in found}.values())

    def _without(self, ids: Ids) -> Ids:
        """Those of the data files, by number, that are not needed."""
        if missing := len(self.reader) - len(self._is_needed):
            self._is_needed = np.pad(self._is_needed, (0, missing))
        found: Ids = ids[~self._is_needed[ids]]
        return found

    def _outside(self, spelled: str, name: str) -> str | None:
        """The URI of a file outside the table; ``None`` if no option of the table names its folder. A path in a
        manifest alone does not justify a deletion.
        """
        path = self.reader.layout.storage.path_of_uri(plain_uri(spelled))
        parts = path.split("/")
        if "://" not in path or ".." in parts or parts[-1] != plain_uri(f"file:///{name}").rpartition("/")[2]:
            return None
        return path if any(path.startswith(f"{root}/") for root in external_roots(self.reader.schema.options)) else None


def external_roots(options: Mapping[str, str]) -> list[str]:
    """URIs of the folders outside the table that its options name."""
    texts = [options.get(key, "") for key in ("data-file.external-paths", "global-index.external-path")]
    return [plain_uri(text.strip()) for text in ",".join(texts).split(",") if is_external(text.strip())]


def key_of(file: ExpiredFile) -> str:
    """The file's name in manifests."""
    path = unquote(file.path) if "://" in file.path else file.path
    return file_key(path.rpartition("/")[2])


def _names(ref: Ref) -> tuple[str | bool | None, ...]:
    # A changelog names the same files as its snapshot, but needs fewer of them.
    return ref.is_changelog, ref.deltas, ref.base, ref.delta, ref.changelog, ref.index, ref.statistics


def _missing(layout: Layout, version: int, missing: MissingError) -> DvMaintenanceError:
    if not layout.storage.exists(missing.ref.path):
        return conflict(layout, version, f"{missing.ref.path} was deleted while its manifests were read")
    return DamagedTableError(
        f"{missing}, so the needed files are unknown",
        table=layout.uri,
        version=missing.ref.id,
        next_step="run again, if another process may be expiring that snapshot now; otherwise restore the file, "
        "or delete the snapshot, tag or changelog that needs it with Paimon itself",
    )
