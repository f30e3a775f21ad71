"""Proof that row groups were copied: the stored file is read again, and compared with the sources: those on local disk
are read again, too, of others there are checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.engine.faults import reading, writing
from dv_maintenance.engine.parquet.copier import checksums, same_bytes
from dv_maintenance.errors import VerificationError
from dv_maintenance.files.parquet_pages import PageError
from dv_maintenance.storage.remote_input import RemoteInput

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.copier import CopiedGroup
    from dv_maintenance.engine.parquet.row_group_copy import GroupCopy
    from dv_maintenance.storage import Storage

_SAME: Final = (
    "physical_type",
    "compression",
    "num_values",
    "has_dictionary_page",
    "total_compressed_size",
    "total_uncompressed_size",
)


def check_copies(storage: Storage, uri: str, footer: Any, copied: Sequence[tuple[int, GroupCopy, CopiedGroup]]) -> None:
    """Raise VerificationError unless the stored file has these row groups of its sources, at these places.

    footer : of the stored file, as Arrow reads it. Its metadata must be that of the sources, apart from places, and
        the bytes where it says the pages are must be those that were read from the sources.
    """
    if not copied:
        return
    with writing(uri), storage.open_input(uri) as file:
        if isinstance(file, RemoteInput):
            file.expect(sorted(each for place, _, _ in copied for each in _ranges(footer.row_group(place))))
        for place, wanted, found in copied:
            group = footer.row_group(place)
            _check_metadata(uri, group, wanted)
            try:
                same = _same_bytes(storage, file, _ranges(group), wanted, found)
            except (PageError, pa.ArrowException) as error:
                raise _differs(uri, wanted, str(error)) from error
            if not same:
                raise _differs(uri, wanted, "its bytes are others")


def _same_bytes(
    storage: Storage, file: pa.NativeFile, ranges: Sequence[tuple[int, int]], wanted: GroupCopy, found: CopiedGroup
) -> bool:
    if found.checksums is not None:
        return checksums(file, ranges) == found.checksums
    with reading(wanted.uri):
        source = storage.open_input(wanted.uri)
    with source:
        return same_bytes(file, ranges, source, _ranges(wanted.metadata))


def _check_metadata(uri: str, group: Any, wanted: GroupCopy) -> None:
    theirs = wanted.metadata
    if (group.num_rows, group.num_columns) != (theirs.num_rows, theirs.num_columns):
        raise _differs(uri, wanted, f"it has {group.num_rows} rows, not {theirs.num_rows}")
    for leaf in range(group.num_columns):
        ours, source = group.column(leaf), theirs.column(leaf)
        for name in _SAME:
            if getattr(ours, name) != getattr(source, name):
                raise _differs(uri, wanted, f"the {name} of {source.path_in_schema} is another")
        if not set(source.encodings) <= set(ours.encodings) <= {*source.encodings, "PLAIN"}:
            raise _differs(uri, wanted, f"the encodings of {source.path_in_schema} are others")
        if leaf not in wanted.specials.nan and _bounds(ours) != _bounds(source):
            raise _differs(uri, wanted, f"the statistics of {source.path_in_schema} are others")


def _bounds(chunk: Any) -> tuple[Any, ...]:
    stats = chunk.statistics if chunk.is_stats_set else None
    if stats is None:
        return ()
    bounds = (stats.min_raw, stats.max_raw) if stats.has_min_max else ()
    return (stats.has_null_count and stats.null_count, *bounds)


def _ranges(group: Any) -> list[tuple[int, int]]:
    """Where the pages of each column chunk are, as (offset, length)."""
    return [_pages(group.column(leaf)) for leaf in range(group.num_columns)]


def _pages(chunk: Any) -> tuple[int, int]:
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return min(begin, chunk.data_page_offset), chunk.total_compressed_size


def _differs(uri: str, wanted: GroupCopy, why: str) -> VerificationError:
    return VerificationError(
        f"{wanted.name} was copied to {uri}, but what is stored there differs: {why}", done="nothing was committed"
    )
