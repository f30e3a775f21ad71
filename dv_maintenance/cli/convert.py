"""``dvm convert``: a folder of Parquet files becomes a table. Starts no Spark."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance import tables
from dv_maintenance.cli.access import lean_memory
from dv_maintenance.cli.output import Output, bytes_text, count

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.maintenance.convert import ConvertReport

__all__ = ["convert", "partition_types"]


def partition_types(text: str) -> dict[str, pa.DataType]:
    """``day DATE, shop STRING`` by column. Raises argparse.ArgumentTypeError."""
    import pyarrow as pa

    known = {
        **dict.fromkeys(("tinyint", "byte"), pa.int8()),
        **dict.fromkeys(("smallint", "short"), pa.int16()),
        **dict.fromkeys(("int", "integer"), pa.int32()),
        **dict.fromkeys(("bigint", "long"), pa.int64()),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    found: dict[str, pa.DataType] = {}
    for part in re.split(r",(?![^(]*\))", text):
        name, _, kind = part.strip().rpartition(" ")
        decimal = re.fullmatch(r"decimal\((\d{1,2}),(\d{1,2})\)", kind.lower())
        if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
            found[name.strip(" `")] = pa.decimal128(int(decimal[1]), int(decimal[2]))
        elif name and kind.lower() in known:
            found[name.strip(" `")] = known[kind.lower()]
        else:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a column and type; write 'day DATE, shop STRING'"
            )
    return found


def convert(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.convert import convert as run

    lean_memory()
    options = dict(args.storage_option)
    out.hide(options.values())
    # Given, not detected: there is nothing to detect yet.
    target = tables.open_table(args.table, args.format or "delta", options)
    report = run(target, args.partition_by, dry_run=args.dry_run)
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: ConvertReport) -> str:
    if report.version is not None and not report.converted:
        return f"{report.table}  version {report.version}\nnothing to do: it is a {report.format} table already"
    what = f"{count(report.files)} files, {count(report.rows)} rows, {bytes_text(report.bytes)}"
    lines = [f"{'converted' if report.converted else 'would convert'} {report.table}: {what}"]
    lines.append(f"columns: {', '.join(report.columns)}")
    if report.partition_columns:
        lines.append(f"partitioned by {', '.join(report.partition_columns)}")
    if report.ignored:
        lines.append(f"{count(report.ignored)} other files are no part of it")
    return "\n".join(lines)
