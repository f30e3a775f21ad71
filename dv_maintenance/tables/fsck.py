"""What a reader of a version opens besides the log: the files that ``fsck`` checks, and how a format repairs damage.

The format says which files are needed, and what its own engine offers. Looking for them, reading them and judging the
findings is the same for all formats, see ``maintenance.fsck``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import bools, strings
from dv_maintenance.remedies import Verb, face
from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.work import SourceFile

DATA = "data"
DV = "dv"
WAITING = "waiting"
"""A data file that readers do not open yet, but that a compaction will."""
INDEX = "index"

# One row per pair of a live file and a file that its readers need: a DV file with the DVs of ten data files has ten.
NEEDED = pa.schema(
    [
        # For the table's storage.
        pa.field("path", pa.string(), nullable=False),
        # One of the kinds above.
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        # Bytes; null where the log does not say.
        pa.field("size", pa.int64()),
        # Whether `size` is exact. If not, the file is at least that large: `size` may be the end of a DV in it.
        pa.field("exact", pa.bool_(), nullable=False),
        # The row in `Snapshot.files` of the live file whose readers need it; null if it serves none in particular.
        pa.field("file", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Needed:
    """Needed files of one kind, the columns of NEEDED.

    paths : strings.
    sizes : 64-bit integers.
    files : 64-bit integers; ``None`` if the files serve no live file in particular.
    """

    kind: str
    paths: pa.Array | pa.ChunkedArray
    sizes: pa.Array | pa.ChunkedArray
    exact: bool
    files: pa.Int64Array | None


def needed(parts: Sequence[Needed]) -> pa.Table:
    """The parts, one after the other, as one table; schema NEEDED."""
    lengths = [len(part.paths) for part in parts]
    codes = np.repeat(np.arange(len(parts), dtype=np.int8), lengths)
    kinds = pa.Int8Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes)])
    columns = {
        "path": pa.chunked_array([chunk for part in parts for chunk in _chunks(part.paths)], pa.string()),
        "kind": pa.DictionaryArray.from_arrays(kinds, strings([part.kind for part in parts])),
        "size": pa.chunked_array([chunk for part in parts for chunk in _chunks(part.sizes)], pa.int64()),
        "exact": bools(np.repeat([part.exact for part in parts], lengths)),
        "file": pa.chunked_array(
            [pa.nulls(len(part.paths), pa.int64()) if part.files is None else part.files for part in parts], pa.int64()
        ),
    }
    return pa.Table.from_arrays([columns[name] for name in NEEDED.names], schema=NEEDED)


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    # `combine_chunks` of a column without chunks imports pandas.
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


@dataclass(frozen=True, slots=True)
class Repair:
    """A way to repair damage.

    how : what to do, as a sentence.
    command : what to run, here or in another engine; ``None`` if it is not a command.
    loses : what the repair loses, as a sentence.
    """

    how: str
    command: Verb | str | None
    loses: str

    @property
    def command_line(self) -> str | None:
        """The command as the reader types it."""
        return self.command.spelled(face(), quote="") if isinstance(self.command, Verb) else self.command


def going_back(act: str, version: str, command: Verb | str) -> Repair:
    """The repair by an older version. ``act``: such as ``Restore``; ``version``: such as ``version 7``."""
    return Repair(
        f"{act} {version}, which needs none of the damaged files and whose own files all exist.",
        command,
        f"What was committed after {version}.",
    )


@dataclass(frozen=True, slots=True)
class LogFault:
    """A fault in the log that this package can do without, while other readers fail.

    path : of the file.
    reason : what is wrong with it, to be read after the path.
    effect : who can't read what, as a sentence.
    """

    path: str
    reason: str
    effect: str
    remedy: Repair


@runtime_checkable
class FsckTable(Table, Protocol):
    """A table that can say which files a reader of a version opens."""

    def needed_files(self, snapshot: Snapshot) -> pa.Table:
        """Every file that a reader of the snapshot opens, schema NEEDED. Reads nothing but the snapshot, except for
        index files whose names the log does not have.
        """

    def log_faults(self, snapshot: Snapshot) -> tuple[LogFault, ...]:
        """What is wrong with the log although the snapshot could be read."""

    def stored_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        """Every data file of the snapshot with its DV, whether this package can read its rows or not. If several files
        hold the rows of one live file together, the first of them has the DV.
        """

    def remedies(self, snapshot: Snapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
        """How the format and its engine repair damage of files of these kinds, cheapest first. Data files are among the
        kinds if one is missing.

        back_to : an older version that does not need the damaged files, and whose own files exist; ``None``: there is
            none.
        """
