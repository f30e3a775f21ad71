"""Where a streaming reader of a Delta table continues, by its checkpoint folder.

Structured Streaming writes ``offsets/N`` before batch N and ``commits/N`` after it; offsets are delta-spark's
``DeltaSourceOffset``. The offset of a batch is where the next batch begins. A batch without its commit runs again, from
the offset of the previous batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from dv_maintenance.errors import RefusedError
from dv_maintenance.remedies import Remedy, setting

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream continues.

    version : the version to read next, whose files may have been read in part; -1 if only the first batch was planned,
        so that its start is unknown.
    initial : whether the stream still reads the initial snapshot, that is, all files of that version.
    """

    version: int
    initial: bool


def stream_offset(checkpoint: Storage, table_id: str) -> StreamOffset | None:
    """The offset in a checkpoint folder for the table with this id; ``None`` before the stream has begun.

    Raises
    ------
    RefusedError : the folder is not a checkpoint folder, is damaged, or its stream does not read this table.
    """
    offsets, commits = (_numbers(checkpoint, folder) for folder in ("offsets", "commits"))
    if not offsets:
        if commits or not checkpoint.exists("metadata"):
            raise _no_checkpoint(checkpoint, "it has no offsets")
        return None
    done = [number for number in offsets if commits and number <= max(commits)]
    # Old offsets are deleted: the oldest remaining one belongs to a finished batch.
    first = max(done) if done else min(offsets)
    found = list(_delta_offsets(checkpoint, first))
    mine = [each for each in found if each.get("reservoirId") == table_id]
    if not mine:
        raise _no_checkpoint(
            checkpoint, "the stream reads another table" if found else "the stream reads no Delta table"
        )
    at = [
        StreamOffset(each["reservoirVersion"], bool(each.get("isStartingVersion", each.get("isInitialSnapshot"))))
        for each in mine
    ]
    whole = [each for each in at if each.initial]
    if not done and not whole:
        return StreamOffset(-1, initial=False)
    # One query may read the table more than once.
    return StreamOffset(min(each.version for each in at), initial=bool(whole))


def _numbers(checkpoint: Storage, folder: str) -> list[int]:
    names = (info.path.rpartition("/")[2] for info in checkpoint.list(folder))
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _delta_offsets(checkpoint: Storage, number: int) -> Iterator[Mapping[str, Any]]:
    lines = checkpoint.get(f"offsets/{number}").split(b"\n")
    if lines[0].strip() != b"v1":
        raise _no_checkpoint(checkpoint, f"offsets/{number} has an unknown version")
    for line in lines[2:]:
        try:
            body = orjson.loads(line) if line.strip() not in {b"", b"-"} else None
        except orjson.JSONDecodeError:
            continue  # the offset of another kind of source
        if isinstance(body, dict) and type(body.get("reservoirVersion")) is int:
            yield body


def _no_checkpoint(checkpoint: Storage, problem: str) -> RefusedError:
    return RefusedError(
        f"{checkpoint.uri} is not the checkpoint folder of a stream that reads this table: {problem}",
        table=checkpoint.uri,
        next_step=Remedy(
            "give the folder that the query uses as checkpointLocation as {}, or leave it out if the stream is no "
            "longer used",
            (setting("protected_streams"),),
        ),
    )
