"""Faults of single files, as they are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MISSING: Final = "missing"
SIZE: Final = "size"
CONTENT: Final = "content"
ROWS: Final = "rows"
NULLS: Final = "nulls"
COUNT: Final = "count"
ARROW: Final = "arrow"
LOG: Final = "log"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one file, or with one deletion vector (DV) in it.

    path : for the table's storage; "" for the log as a whole.
    kind : of the file, see ``tables.fsck``; or LOG.
    fault : MISSING, SIZE (other than the log says), CONTENT (footer, framing, checksum, cardinality or positions), ROWS
        (the footer contradicts the log), NULLS (rows without a value in a NOT NULL column), COUNT (a whole file, of
        which the log has a wrong size or cardinality), ARROW (a whole file whose Arrow schema is damaged) or LOG.
    reason : what is wrong, to be read after the path.
    files : rows in ``Snapshot.files`` of the live files whose readers fail.
    command : lets a NOT NULL column be null.
    """

    path: str
    kind: str
    fault: str
    reason: str
    files: tuple[int, ...]
    command: str = ""
