"""Tables of a known shape, and copies of them. Sizes are numbers of rows or files, as each builder names them."""

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
_DATA = (".parquet", ".orc", ".lance")

Mask = Callable[[np.random.Generator, int], Any]
"""Which rows of a file are deleted: from a generator and the number of rows, an array of booleans."""


def build(
    root: Path, rows: int, files: int, deleted: Mask | None, *, group: int = 1 << 20, partitioned: bool = False
) -> None:
    """A Delta table of one commit: ``files`` files with ``rows`` rows together, in snappy, each with a deletion vector
    if ``deleted`` is given. The rows are the same with and without.

    group : rows of a row group.
    partitioned : each file is a partition.
    """
    from dv_maintenance.dv import DeletionVector, delta

    (root / "_delta_log").mkdir(parents=True)
    rng, chance = np.random.default_rng(7), np.random.default_rng(11)
    per_file = rows // files
    adds: list[dict[str, Any]] = []
    vectors: list[DeletionVector] = []
    marked: list[bool] = []
    for number in range(files):
        name = f"part-{number:05}.parquet"
        table = rows_of(rng, number * per_file, per_file)
        pq.write_table(table, root / name, store_schema=False, compression="snappy", row_group_size=group)
        if deleted is not None:
            vectors.append(DeletionVector.from_mask(pa.array(deleted(chance, per_file))))
            # An empty one is never stored.
            marked.append(bool(len(vectors[-1])))
        stats = json.dumps({"numRecords": per_file, "tightBounds": deleted is None})
        adds.append(
            {
                "path": name,
                "partitionValues": {"part": str(number)} if partitioned else {},
                "size": (root / name).stat().st_size,
                "modificationTime": 0,
                "dataChange": True,
                "stats": stats,
            }
        )
    descriptors: list[Any] = []
    for packed in delta.pack([vector for vector in vectors if len(vector)]):
        (root / packed.path).write_bytes(packed.data)
        descriptors += packed.descriptors
    with_dv = [add for add, is_marked in zip(adds, marked, strict=False) if is_marked]
    for add, descriptor in zip(with_dv, descriptors, strict=True):
        add["deletionVector"] = descriptor.to_json()
    fields = {"id": "long", "count": "long", "value": "double", "name": "string", "at": "timestamp"}
    if partitioned:
        fields["part"] = "integer"
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
                "partitionColumns": ["part"] if partitioned else [],
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
    """Data files, which nobody changes, are shared; the rest is not."""
    return Path(shutil.copytree(table, target, copy_function=_shared))


def _shared(source: str, target: str) -> None:
    (os.link if source.endswith(_DATA) else shutil.copy)(source, target)


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


# -- Delta ---------------------------------------------------------------------------------------------------------


def random_dvs(root: Path, rows: int) -> None:
    build(root, rows, 16, at_random(0.3))


def stretches(root: Path, rows: int) -> None:
    build(root, rows, 16, in_stretches(0.5, 200_000), group=100_000)


def two_of_ten(root: Path, rows: int) -> None:
    files = max(rows // 1_000_000, 1)
    build(root, rows, files, in_groups(0.3, 2, 10), group=rows // files // 10)


def small_files(root: Path, files: int) -> None:
    """Of 8 MB, in row groups of a million rows, so one in each."""
    build(root, files * 160_000, files, None)


def large_groups(root: Path, files: int) -> None:
    """Half as large as the target, in row groups of 500,000 rows."""
    build(root, files * 1_000_000, files, None, group=500_000)


def one_file(root: Path, rows: int, deleted: Mask | None = None, share: int = 1) -> None:
    """With one in ``share`` of the rows, in row groups of 131,072."""
    build(root, rows // share, 1, deleted, group=1 << 17)


def partitions(root: Path, files: int, deleted: Mask | None = None) -> None:
    """Partitions with a file of 3 KB each."""
    build(root, files * 30, files, deleted, partitioned=True)


def erased(root: Path, files: int) -> None:
    """The first row of each partition is deleted."""
    partitions(root, files, lambda _, rows: np.arange(rows) == 0)


def orphans(root: Path, files: int) -> None:
    from bench_vacuum import build as build_vacuum

    build_vacuum(root, files)


def orphans_and_checkpoint(root: Path, files: int) -> None:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.load import load_snapshot
    from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint

    orphans(root, files)
    storage = Storage(str(root))
    write_checkpoint(storage, load_snapshot(storage))


# -- others: 30 % of the rows deleted at random --------------------------------------------------------------------


def paimon(root: Path, rows: int, kind: str = "parquet") -> None:
    """Sixteen files at first, then as a purge writes them: in the codec that the engine uses."""
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table
    from dv_maintenance.testing.paimon_builder import PaimonBuilder

    builder = PaimonBuilder(root)
    columns = {"id": "BIGINT", "count": "BIGINT", "value": "DOUBLE", "name": "STRING", "at": "TIMESTAMP(6)"}
    builder.create(columns, options={"file.format": kind, "target-file-size": "128 mb"})
    rng, chance = np.random.default_rng(7), np.random.default_rng(11)
    for number in range(16):
        builder.append(rows_of(rng, number * (rows // 16), rows // 16))
    builder.delete(lambda rows: pa.array(chance.random(rows.num_rows) < 0.001))
    purge(open_table(str(root)), LocalEngine())
    builder.delete(lambda rows: pa.array(chance.random(rows.num_rows) < 0.3))


def paimon_orc(root: Path, rows: int) -> None:
    paimon(root, rows, "orc")


def lance(root: Path, rows: int) -> None:
    """Ten fragments."""
    import lance

    rng = np.random.default_rng(7)
    for number in range(10):
        data = rows_of(rng, number * (rows // 10), rows // 10)
        mode = "append" if number else "create"
        dataset = lance.write_dataset(data, str(root), mode=mode, max_rows_per_file=rows // 10)
    # Three tenths of normal values are below.
    dataset.delete("value < -0.5244")
