"""Faults that maintenance had, planted into tables: what a battery of queries must notice.

Each works on a table without deletion vectors and does what the faulty code did to files or to the log, so that the
proof outlives the code.
"""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from answer_tables import live_files

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """``table``: the one it is planted into. ``leaves``: those that are asked about; others have their own faults."""

    table: str
    leaves: tuple[str, ...]
    plant: Callable[[Path], None]


def recommit(place: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A commit that replaces the entry of each live file by what ``change`` makes of it."""
    live = live_files(place)
    now = time.time_ns() // 1_000_000
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "OPTIMIZE", "operationParameters": {}}}
    ]
    for path, add in live.items():
        gone = {"path": path, "deletionTimestamp": now, "dataChange": False, "extendedFileMetadata": True}
        gone |= {key: add[key] for key in ("partitionValues", "size", "deletionVector") if key in add}
        new = change(json.loads(json.dumps(add)))
        if new == add:
            continue
        other = new["path"] != path or new.get("deletionVector") != add.get("deletionVector")
        actions += [{"remove": gone}] if other else []
        actions.append({"add": new | {"dataChange": False}})
    number = 1 + max(int(each.stem) for each in (place / "_delta_log").glob("*.json") if each.stem.isdigit())
    (place / "_delta_log" / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def rewritten(
    place: Path,
    keep: Callable[[Mapping[bytes, bytes]], Mapping[bytes, bytes]],
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    **options: Any,
) -> None:
    """Every file read and written by Arrow as its numbers are; ``keep``: of its footer's keys."""

    def again(add: dict[str, Any]) -> dict[str, Any]:
        old = place / unquote(add["path"])
        file = pq.ParquetFile(old, coerce_int96_timestamp_unit="us")
        rows = change(file.read().replace_schema_metadata(None))
        new = old.with_name(f"again-{old.name}")
        with pq.ParquetWriter(new, rows.schema, store_schema=False, **options) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(dict(keep(file.metadata.metadata or {})))
        path = add["path"].rsplit("/", 1)
        return add | {"path": "/".join([*path[:-1], f"again-{path[-1]}"]), "size": new.stat().st_size}

    recommit(place, again)


def with_values(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def changed(rows: pa.Table) -> pa.Table:
        column = rows[name]
        values = [None if value is None else change(value) for value in column.to_pylist()]
        return rows.set_column(rows.column_names.index(name), name, pa.array(values, column.type))

    return changed


def _all(metadata: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    return metadata


def _nothing(metadata: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    return {}


def _without_marker(metadata: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    return {key: value for key, value in metadata.items() if b"legacy" not in key and b"timeZone" not in key}


def _merged(place: Path) -> None:
    """Files of all partitions in one of them."""
    values: list[dict[str, Any]] = []

    def as_first(add: dict[str, Any]) -> dict[str, Any]:
        values.append(add["partitionValues"])
        return add | {"partitionValues": values[0]}

    recommit(place, as_first)


def _shifted(place: Path) -> None:
    """Texts without a zone read as UTC, written as an instant."""

    def in_utc(add: dict[str, Any]) -> dict[str, Any]:
        text = add["partitionValues"]["pts"]
        if text and "Z" not in text and "T" not in text:
            return add | {"partitionValues": add["partitionValues"] | {"pts": text.replace(" ", "T") + "Z"}}
        return add

    recommit(place, in_utc)


def _decoded(place: Path) -> None:
    """A name that is taken for an escaped one, once more."""

    def once_more(add: dict[str, Any]) -> dict[str, Any]:
        values = {key: value and value.replace("%", "") for key, value in add["partitionValues"].items()}
        return add | {"partitionValues": values}

    recommit(place, once_more)


def _stats(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def plant(place: Path) -> None:
        def other(add: dict[str, Any]) -> dict[str, Any]:
            stats = json.loads(add["stats"])
            change(stats)
            return add | {"stats": json.dumps(stats)}

        recommit(place, other)

    return plant


def _nan_left_out(stats: dict[str, Any]) -> None:
    stats["maxValues"]["f64"] = 50.0
    stats["maxValues"]["dn"] = 0.0


def _least_as_greatest(stats: dict[str, Any]) -> None:
    stats["maxValues"]["i64"] = stats["minValues"]["i64"]


def _undeleted(place: Path) -> None:
    recommit(place, lambda add: {key: value for key, value in add.items() if key != "deletionVector"})


def _without_a_file(place: Path) -> None:
    (place / unquote(next(iter(live_files(place))))).unlink()


def _without_a_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 20), rows.slice(21)])


def _with_a_row_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(20, 1)])


TIMES, FLOATS = ("`d`", "`ts`", "`st`.`y`.`z`"), ("`f32`", "`f64`", "`dn`", "`st`.`x`")

FAULTS: Mapping[str, Fault] = {
    "legacy calendar read raw, marker lost": Fault(
        "legacy-micros, whole", TIMES, lambda place: rewritten(place, _without_marker)
    ),
    "INT96 of the legacy calendar read raw": Fault(
        "legacy, whole", TIMES, lambda place: rewritten(place, _without_marker)
    ),
    "no version key": Fault("current, whole", TIMES, lambda place: rewritten(place, _nothing)),
    "NaN left out of footers": Fault("current, whole", FLOATS, lambda place: rewritten(place, _all)),
    "NaN left out of the page index": Fault(
        "current, whole", FLOATS, lambda place: rewritten(place, _all, write_page_index=True, data_page_size=40)
    ),
    "partitions merged across zones": Fault("by time, whole", ("`pts`", "`k`"), _merged),
    "times of partitions taken for UTC": Fault("by time, whole", ("`pts`", "`k`"), _shifted),
    "names decoded twice": Fault("by date and escaped text, whole", ("`ps`", "`pd`"), _decoded),
    "spaces lost": Fault(
        "current, whole", ("`v6`",), lambda place: rewritten(place, _all, with_values("v6", str.rstrip))
    ),
    "negative zero lost": Fault(
        "current, whole",
        ("`f64`",),
        lambda place: rewritten(place, _all, with_values("f64", lambda value: value + 0.0)),
    ),
    "deleted rows are back": Fault("few values a file", ("`k`",), _undeleted),
    "a live file is gone": Fault("few values a file", ("`k`",), _without_a_file),
    "a row is gone": Fault("current, whole", ("`k`",), lambda place: rewritten(place, _all, _without_a_row)),
    "a row is there twice": Fault("current, whole", ("`k`",), lambda place: rewritten(place, _all, _with_a_row_twice)),
    "accents composed": Fault(
        "edges, whole",
        ("`odd`",),
        lambda place: rewritten(place, _all, with_values("odd", lambda text: unicodedata.normalize("NFC", text))),
    ),
    "NaN left out of the log": Fault("current, whole", ("`f64`", "`dn`"), _stats(_nan_left_out)),
    "a bound too low in the log": Fault("current, whole", ("`i64`",), _stats(_least_as_greatest)),
}
