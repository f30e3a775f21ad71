"""Delta tables of a known shape, each of one commit, and copies of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TARGET = 128 << 20

Mask = Callable[[np.random.Generator, int], Any]
"""Which rows of a file are deleted: from a generator and the number of rows, an array of booleans."""


def build(root: Path, rows: int, files: int, deleted: Mask | None, *, group: int = 1 << 20) -> None:
    """``files`` files with ``rows`` rows together, in snappy, each with a deletion vector if ``deleted`` is given.

    group : rows of a row group.
    """
    from dv_maintenance.dv import DeletionVector, delta

    (root / "_delta_log").mkdir(parents=True)
    rng = np.random.default_rng(7)
    per_file = rows // files
    adds: list[dict[str, Any]] = []
    vectors: list[DeletionVector] = []
    marked: list[bool] = []
    for number in range(files):
        name = f"part-{number:05}.parquet"
        table = rows_of(rng, number * per_file, per_file)
        pq.write_table(table, root / name, store_schema=False, compression="snappy", row_group_size=group)
        if deleted is not None:
            vectors.append(DeletionVector.from_mask(pa.array(deleted(rng, per_file))))
            # An empty one is never stored.
            marked.append(bool(len(vectors[-1])))
        stats = json.dumps({"numRecords": per_file, "tightBounds": deleted is None})
        adds.append(
            {
                "path": name,
                "partitionValues": {},
                "size": (root / name).stat().st_size,
                "modificationTime": 0,
                "dataChange": True,
                "stats": stats,
            }
        )
    descriptors = []
    for packed in delta.pack([vector for vector in vectors if len(vector)]):
        (root / packed.path).write_bytes(packed.data)
        descriptors += packed.descriptors
    with_dv = [add for add, is_marked in zip(adds, marked, strict=False) if is_marked]
    for add, descriptor in zip(with_dv, descriptors, strict=True):
        add["deletionVector"] = descriptor.to_json()
    fields = {"id": "long", "count": "long", "value": "double", "name": "string", "at": "timestamp"}
    schema = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }
        },
        {
            "metaData": {
                "id": "7b8e2f0c-2f57-4f0e-9f0a-0d6f0f3f2a11",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": schema}),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true", "delta.targetFileSize": str(TARGET)},
                "createdTime": 0,
            }
        },
        *({"add": add} for add in adds),
    ]
    commit = root / "_delta_log" / "00000000000000000000.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def rows_of(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    ids = pa.array(np.arange(first, first + count))
    noise = pa.array(rng.integers(0, 10**12, count)).cast(pa.string())
    return pa.table(
        {
            "id": ids,
            "count": rng.integers(0, 2**40, count),
            "value": rng.normal(size=count),
            "name": pc.binary_join_element_wise("customer", pc.utf8_lpad(noise, 12, "0"), "-"),
            "at": pa.array(rng.integers(1_700_000_000_000_000, 1_760_000_000_000_000, count)).cast(
                pa.timestamp("us", tz="UTC")
            ),
        }
    )


def copy(table: Path, target: Path) -> Path:
    """Files that nobody changes are shared; the log is not."""
    target.mkdir()
    for file in table.iterdir():
        if file.is_file():
            os.link(file, target / file.name)
    shutil.copytree(table / "_delta_log", target / "_delta_log")
    return target


def at_random(share: float) -> Mask:
    return lambda rng, rows: rng.random(rows) < share


def in_stretches(share: float, stretch: int) -> Mask:
    """Whole stretches of rows, as an erased day or customer leaves them."""

    def mask(rng: np.random.Generator, rows: int) -> Any:
        chosen = rng.random(-(-rows // stretch)) < share
        return np.repeat(chosen, stretch)[:rows]

    return mask


def in_groups(share: float, touched: int, of: int) -> Mask:
    """A share of the rows of ``touched`` of every ``of`` equal parts of a file."""

    def mask(rng: np.random.Generator, rows: int) -> Any:
        part = np.arange(rows) * of // rows
        return (part < touched) & (rng.random(rows) < share)

    return mask
