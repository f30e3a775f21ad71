"""Files that readers of a Delta table open besides the log, and how to repair the table if one is missing.

Protocol: Add File, Deletion Vector Descriptor Schema. Checkpoints, sidecars and commits were read for the snapshot.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import bools, combined, flags, int64s, numbers, strings
from dv_maintenance.remedies import run
from dv_maintenance.storage import NOT_PLAIN, RawName
from dv_maintenance.tables.delta.commit.ratification import torn_copies
from dv_maintenance.tables.delta.load import REPEATS, passed_over
from dv_maintenance.tables.delta.log.pointer import POINTER, hinted, problem
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.log.segment import checkpoint_path, commit_path, complete_checkpoints
from dv_maintenance.tables.delta.log.strictness import strict_faults
from dv_maintenance.tables.fsck import DATA, DV, LogFault, Needed, Repair, going_back, needed

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_DV_FRAME: Final = 8  # bytes around a bitmap in its file: size word and checksum
_POINTER_EFFECT: Final = "Readers that trust it, such as deltalake, polars and DuckDB, can't open the table."
_OTHERS_FAIL: Final = "dvm reads older files instead; most other readers can't read the table."
_FORGETS: Final = (
    "Another engine may report it as published; the catalog then forgets the only right copy, and nobody can read the "
    "table."
)
_PUBLISH: Final = "Publish the commit again."
_OLDER: Final = "Nothing of the newest version. Other readers still fail on versions between the two checkpoints."


def needed_files(storage: Storage, snapshot: DeltaSnapshot) -> pa.Table:
    """Data files with their exact sizes, and DV files with their minimum sizes: each must hold its last DV."""
    files = snapshot.files
    dvs = combined(files["dv"])
    # Arrow scalars, because Arrow imports pandas to convert Python ones.
    stored = pc.fill_null(pc.not_equal(pc.struct_field(dvs, "storage_type"), strings(["i"])[0]), bools([False])[0])
    dvs = dvs.filter(stored)
    nothing, frame = int64s([0, _DV_FRAME])
    starts = pc.fill_null(pc.struct_field(dvs, "offset").cast(pa.int64()), nothing)
    ends = pc.add(pc.add(starts, pc.struct_field(dvs, "size").cast(pa.int64())), frame)
    return needed(
        [
            Needed(
                DATA,
                _paths(storage, combined(files["path"])),
                combined(files["size"]),
                exact=True,
                files=int64s(np.arange(files.num_rows)),
            ),
            Needed(DV, _dv_paths(storage, dvs), ends, exact=False, files=int64s(np.flatnonzero(flags(stored)))),
        ]
    )


def _paths(storage: Storage, names: pa.StringArray) -> pa.StringArray:
    """The paths that names in the log stand for. Only names that must be decoded become Python objects."""
    strange = pc.match_substring_regex(names, NOT_PLAIN)
    if not pc.any(strange).as_py():
        return names
    decoded = [storage.path_of(RawName(name)) for name in names.filter(strange).to_pylist()]
    return pc.replace_with_mask(names, strange, strings(decoded))


def _dv_paths(storage: Storage, dvs: pa.StructArray) -> pa.StringArray:
    """The file of each descriptor. DVs share files, so each name is decoded once. Raises DamagedDeletionVectorError."""
    if not len(dvs):
        return strings([])
    from dv_maintenance.tables.delta.rows.tasks import descriptor, dv_ref

    kinds, names = pc.struct_field(dvs, "storage_type"), pc.struct_field(dvs, "path_or_inline")
    coded = pc.binary_join_element_wise(kinds, names, strings([""])[0]).dictionary_encode()
    _, firsts = np.unique(numbers(coded.indices), return_index=True)
    uris = [dv_ref(storage, descriptor(dvs[int(at)].as_py())).uri for at in firsts]
    return strings([storage.path_of_uri(uri) if uri else "" for uri in uris]).take(coded.indices)


def log_faults(storage: Storage, snapshot: DeltaSnapshot) -> tuple[LogFault, ...]:
    """A pointer to a checkpoint that does not exist, damaged checkpoints and compacted commits, torn copies of ratified
    commits, and what the protocol forbids.
    """
    name = storage.catalog.name if isinstance(storage, RatifiedStorage) else storage.uri
    command = run("checkpoint", name)
    again = Repair(_PUBLISH, run("publish", name), "Nothing.")
    faults = [
        LogFault(commit_path(version), "is not what the catalog has ratified", _FORGETS, again)
        for version in torn_copies(storage)
    ]
    wrong = problem(storage, complete_checkpoints(storage))
    # One that is not JSON is a warning of the snapshot: every reader lists the log instead.
    if wrong is not None and hinted(storage)[1] is None:
        remedy = Repair("Write the pointer again, and the checkpoint, if there is none.", command, "Nothing.")
        faults.append(LogFault(POINTER, wrong, _POINTER_EFFECT, remedy))
    passed = passed_over(storage, snapshot)
    if passed is not None and passed.checkpoint is None:
        remedy = Repair("Move the compacted files out of the log, which has their commits, too.", None, "Nothing.")
        faults += [LogFault(path, passed.damage, _OTHERS_FAIL, remedy) for path in passed.paths]
    elif passed is not None:
        newer = "Write a checkpoint of the newest version, from which readers then begin."
        if passed.checkpoint == snapshot.version and passed.paths != (checkpoint_path(snapshot.version),):
            # Readers prefer it to the one that we write.
            newer = f"Move {' and '.join(passed.paths)} out of the log, which no version needs, and write another."
        faults += [LogFault(path, passed.damage, _OTHERS_FAIL, Repair(newer, command, _OLDER)) for path in passed.paths]
    checkpoints = {each.path: each for each in snapshot.segment.checkpoint_files}
    if checkpoints and any(REPEATS in each for each in snapshot.warnings):
        effect = "Spark reads its rows once, deltalake, polars and DuckDB read them twice."
        repair = Repair("Write a checkpoint of a newer version, from which readers then begin.", command, "Nothing.")
        faults.append(LogFault(next(iter(checkpoints)), REPEATS, effect, repair))
    return (*faults, *strict_faults(storage, snapshot, name))


def remedies(
    storage: Storage, snapshot: DeltaSnapshot, kinds: Collection[str], back_to: int | None
) -> tuple[Repair, ...]:
    """See ``FsckTable``. Only Databricks has a command that removes missing files from the log; Delta Lake has none."""
    found = []
    if back_to is not None:
        found.append(going_back("Restore", f"version {back_to}", run("restore", storage.uri, version=back_to)))
    if snapshot.partition_columns:
        found.append(
            Repair(
                "Rewrite the affected partitions from their source, with replaceWhere on the partition columns, which "
                "reads no old files.",
                None,
                "The rows that the source no longer has.",
            )
        )
    if DATA in kinds:
        found.append(
            Repair(
                "On Databricks, remove the missing data files from the log; preview it with DRY RUN first.",
                f"FSCK REPAIR TABLE delta.`{storage.uri}` DRY RUN",
                "The rows of these files.",
            )
        )
    return tuple(found)
