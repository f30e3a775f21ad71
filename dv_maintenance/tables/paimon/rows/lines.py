"""Files of lines in append tables: CSV, JSON and text. A line is a row, also for Paimon's readers, which take a line
break within quotes for the end of a row. So a file without the lines of deleted rows means the same, and so does one
with the lines of several files of a schema. No value is decoded for it. The new file has the format, the schema, the
header and the compression of the old ones, whatever new files are to be now. For values, see ``line_values``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import flags
from dv_maintenance.files.lines import CODECS
from dv_maintenance.tables.paimon.rows.lineage import tracks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

KINDS: Final = ("csv", "json", "text")
FORMATS: Final = ("lines", "headed")
LINES: Final = pa.schema([pa.field("line", pa.binary())])
_NAME: Final = r"\.(csv|json|text)(\.[^./]+)?$"
# Options with the value by which each line is a row; some have a second name.
_PLAIN: Final = {
    **dict.fromkeys(["csv.line-delimiter", "json.line-delimiter", "text.line-delimiter", "lineSep"], "\n"),
    **dict.fromkeys(["csv.mode", "mode"], "permissive"),
    "json.ignore-parse-errors": "false",
}
_HEADER: Final = ("csv.include-header", "header")


def alike(files: pa.Table) -> Any:
    """For each file of lines the position of the first one whose lines may be in the same file as its own: it has the
    same format, schema and compression. -1 for other files.
    """
    found = np.full(files.num_rows, -1, np.int64)
    rows = np.flatnonzero(flags(pc.match_substring_regex(files["path"], _NAME)))
    if len(rows):
        some = files.take(rows)
        suffixes = pc.replace_substring_regex(some["path"], f"^.*?({_NAME})", r"\1")
        kinds = suffixes.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        keys = some["schema_id"].to_numpy() * (int(kinds.max()) + 1) + kinds
        _, first, of = np.unique(keys, return_index=True, return_inverse=True)
        found[rows] = rows[first[of]]
    return found


def is_of_lines(path: str) -> bool:
    """Whether a file has lines."""
    return re.search(_NAME, path) is not None


def why_not(snapshot: PaimonSnapshot, path: str) -> str | None:
    """Why the lines of a file are not copied here."""
    if tracks(snapshot.options):
        return "rows keep no ids in files of lines (row-tracking.enabled)"
    if (name := otherwise(snapshot)) is not None:
        return f"its lines may be others than its rows ({name})"
    packed = _match(path)[2] or ""
    return None if packed in CODECS else f"its compression is not written here ({packed})"


def otherwise(snapshot: PaimonSnapshot) -> str | None:
    """The option by which lines may be others than rows."""
    return next((name for name, plain in _PLAIN.items() if snapshot.properties.get(name, plain).lower() != plain), None)


def as_lines(snapshot: PaimonSnapshot, source: SourceFile) -> SourceFile:
    """A file of lines, without a look at its values."""
    return replace(source, constants={}, format="headed" if is_headed(snapshot, source.uri) else "lines")


def option(snapshot: PaimonSnapshot, names: Sequence[str], default: str) -> str:
    """An option that has several names, the first of which counts."""
    return next((snapshot.properties[each] for each in names if each in snapshot.properties), default)


def is_headed(snapshot: PaimonSnapshot, path: str) -> bool:
    """Whether the first line of a file is a header."""
    return kind_of(path) == "csv" and option(snapshot, _HEADER, "false").strip().lower() == "true"


def kind_of(path: str) -> str:
    """One of KINDS."""
    return _match(path)[1]


def suffix_of(path: str) -> str:
    """What the name of a file of lines ends with, and that of the new file, too; "" for other files."""
    found = re.search(_NAME, path)
    return found[0] if found else ""


def _match(path: str) -> re.Match[str]:
    found = re.search(_NAME, path)
    assert found, "a file of lines"
    return found
