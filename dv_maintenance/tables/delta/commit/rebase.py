"""Carry concurrent deletes over to a rewrite: its new files get deletion vectors (DVs), and it can be committed.

Only the rows that are live now count, no matter who deleted the rest. If the DV of an input grew, the newly deleted
rows are deleted from the outputs; if an input was removed, all of its rows are. Whether these rows live on elsewhere
does not matter. A rewrite is lost in four cases: rows that it did not copy were brought back; another rewrite moved an
input's rows, so both did the same work; the table does not allow DVs; or the positions of the rows in the outputs are
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.rows.tasks import dv_ref
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.staying import Stay

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.commit.conflicts import Since
    from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
    from dv_maintenance.tables.table import Replacement


def takes_dvs(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether writers may add DVs (protocol: Writer Requirements for Deletion Vectors)."""
    enabled = metadata.configuration.get("delta.enableDeletionVectors", "false").lower() == "true"
    return enabled and "deletionVectors" in protocol.features("writer")


@dataclass(slots=True)
class Rebase:
    """Carries deletes over in each attempt of one commit; reads no DV twice. ``live``: the base version's files, by raw
    key.
    """

    storage: Storage
    live: Mapping[FileKey, LiveFile]
    _read: dict[FileKey, DeletionVector] = field(default_factory=dict)

    def carry(self, replacement: Replacement, since: Since) -> Stay[LiveFile] | str:
        """The replacement with concurrent deletes carried over, or the reason why it is lost. All of its inputs must
        have been live at the base version, and ``kept`` must be known for each of them.

        Raises
        ------
        DamagedDeletionVectorError : a DV of an input is damaged.
        StorageError : a DV can't be read.
        """
        inputs: list[LiveFile] = []
        sources = []
        for key, kept in zip(replacement.inputs, replacement.kept, strict=True):
            now = self._now(key, since)
            if isinstance(now, str):
                return now
            rows = kept + self.live[key].deleted_rows
            older = self._dv(self.live[key], rows)
            newer = None if now is None else self._dv(now, rows)
            if now is not None:
                inputs.append(now)
            if newer is not None and older - newer:
                return f"another writer brought rows of {key.path} back"
            sources.append(Source(kept, older, newer))
        deleted = carry_over(sources, [output.rows for output in replacement.outputs])
        if all(dv.cardinality == output.rows for dv, output in zip(deleted, replacement.outputs, strict=True)):
            return "other writers removed all of its rows"
        return Stay(tuple(inputs), tuple(deleted), carried=True)

    def _now(self, key: FileKey, since: Since) -> LiveFile | str | None:
        """The file as it is now; ``None`` if it was removed; or the reason why its deletes can't be determined."""
        path = since.identify(key.path)
        if FileKey(path, key.dv_id) not in since.gone:
            return self.live[key]
        if (body := since.current.get(path)) is not None:
            return LiveFile.from_add(body)
        return f"another writer rewrote {key.path}" if path in since.moved else None

    def _dv(self, file: LiveFile, rows: int) -> DeletionVector:
        if file.dv is None:
            return DeletionVector.empty()
        if file.key not in self._read:
            self._read[file.key] = load(dv_ref(self.storage, file.dv), self.storage.get_range, rows=rows, of=file.path)
        return self._read[file.key]
