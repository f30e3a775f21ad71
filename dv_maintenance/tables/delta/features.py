"""Table features: which tables we may read, and which we may change (protocol: Table Features).

A reader or writer that does not know the name of a feature must leave the table alone. So the sets below list, by name,
the features that each operation understands. A name that is in none of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.delta.log.actions import FEATURE_READER, FEATURE_WRITER, Metadata, Protocol
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.permissions import check_permitted

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

NO_SCHEMA: Final = "the log has no schema"
_NEWER: Final = "use a newer release of this tool, or the engine that wrote the table"
# The first one is the protocol's; the others are drafts of it.
_MANAGED: Final = "catalogManaged"
_CATALOG: Final = frozenset({_MANAGED, "catalogOwned", "catalogOwned-preview"})

# Reader-writer features: named on both sides of a protocol, or on neither.
_READABLE: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "geospatial",
        "timestampNanos",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)

# Features that a rewrite of files with dataChange=false satisfies, because it leaves the metadata and the rows as
# they are.
_REWRITABLE: Final = _READABLE | {
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",  # forbids cleaning the log, which we never do
    "clustering",
    "collations",  # how strings compare, not how files store them; bounds by a collation may be left out
    "columnMappingUsageTracking",  # of columns that are dropped or renamed, which a rewrite never does
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "icebergWriterCompatV1",  # besides the layout of icebergCompatV2: names and types of columns
    "icebergWriterCompatV3",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "rowTracking",
}

# Features that forbid row changes. A DELETE writes no data file: it adds files again, with larger DVs.
_NO_DELETE: Final = dict.fromkeys(
    ("icebergCompatV1", "icebergCompatV2"), "readers of Iceberg before version 3 do not support deletion vectors"
)
_NO_CONDITIONS: Final = {"collations": "conditions would compare strings by their bytes, not by the collation"}
# operation -> features that forbid it, each with the reason.
_UNFIT: Final = {
    **{verb: {**_NO_DELETE, **_NO_CONDITIONS} for verb in ("delete", "update", "merge")},
    # Adds files as they were, including their DVs.
    "restore": {**_NO_DELETE, "icebergCompatV3": "older files need not have its layout"},
}
UNSTAMPED: Final = "the table has in-commit timestamps, but this commit does not begin with one"

_OPERATIONS: Final = ("rewrite", *_UNFIT, "vacuum", "log", "manifest")

# Deleting unreferenced files and writing manifests change no data file, so features about files do not matter.
# Known, and refused: why, and what to do. Those of readers forbid reading, too.
_LEFT_ALONE: Final = {
    **dict.fromkeys(
        ("adaptiveMetadata", "adaptiveMetadata-preview"),
        (
            "the log keeps no tombstones, and manifests name files and deletion vectors",
            "maintain the table with the engine that wrote it",
        ),
    ),
    "coordinatedCommits-preview": (
        "a commit coordinator may hold versions that the log does not have yet",
        "drop the feature, which later releases of the engine replace by catalogManaged",
    ),
    "intervalTypes": (
        "its types are a draft of the protocol that no engine to check against writes",
        "see a newer release",
    ),
    **dict.fromkeys(
        ("redirectReaderWriter", "redirectReaderWriter-preview", "redirectWriterOnly", "redirectWriterOnly-preview"),
        (
            "the table is the former place of another one, to which it redirects",
            "maintain that table, which the table property of the feature's name describes",
        ),
    ),
}
_BY_THE_ENGINE: Final = Remedy(
    "vacuum still works; to rewrite it run OPTIMIZE or REORG in delta-spark, which {} does and checks",
    (run("engine-sql"),),
)


def check_readable(protocol: Protocol, *, table: str, managed: bool = False) -> None:
    """Refuse a table that cannot be read.

    managed : a catalog said which commits make up the log.

    Raises
    ------
    DamagedTableError : the protocol contradicts itself, or what the catalog says.
    UnsupportedFeatureError : the table has features that we do not understand; names them.
    """
    _check_version("reader", protocol.min_reader, FEATURE_READER, table)
    _check_consistent(protocol, table)
    # A catalog's commits are not in the log: only the catalog knows the newest version.
    by_catalog = (protocol.features("reader") | protocol.features("writer")) & _CATALOG
    if managed and _MANAGED not in by_catalog:
        raise DamagedTableError(
            f"its catalog ratifies commits, but the table lacks the feature {_MANAGED}",
            table=table,
            next_step="ask the operator of the catalog",
        )
    if by_catalog - ({_MANAGED} if managed else set()):
        raise _unsupported(
            "the table is managed by a catalog, which alone knows its newest version",
            by_catalog,
            table,
            f"maintain it through its catalog; a table with {_MANAGED} is opened here by its name "
            "(UNITY.CATALOG.SCHEMA.TABLE)",
        )
    unknown = protocol.features("reader") - _READABLE - ({_MANAGED} if managed else set())
    _refuse_known(unknown, table)
    if unknown:
        raise _unsupported(
            "the table needs features that this release can't read",
            unknown,
            table,
            _NEWER,
        )


def check_writable(storage: Storage, snapshot: DeltaSnapshot, operation: str) -> None:
    """Refuse a table that ``operation`` (``rewrite``, ``delete``, ``update``, ``merge``, ``restore``, ``vacuum``,
    ``manifest``, or ``log`` for what adds to the log alone) may not touch.

    Raises
    ------
    UnsupportedFeatureError : a feature forbids it; names all that do, and an alternative.
    RefusedError : something other than a feature forbids it, such as the table's catalog.
    UsageError : there is no such operation.
    DamagedTableError : the log has no schema, or the protocol contradicts itself.
    """
    if operation not in _OPERATIONS:
        raise UsageError(f"unknown operation {operation!r}", next_step=f"use one of {', '.join(_OPERATIONS)}")
    table, protocol = snapshot.table, snapshot.protocol
    managed = isinstance(storage, RatifiedStorage)
    check_readable(protocol, table=table, managed=managed)
    check_permitted(storage, operation)
    _check_version("writer", protocol.min_writer, FEATURE_WRITER, table)
    check_schema(snapshot)
    features = (protocol.features("writer") | protocol.features("reader")) - ({_MANAGED} if managed else set())
    unknown = features - _REWRITABLE
    _refuse_known(unknown, table, snapshot.version)
    if unknown:
        raise _unsupported(
            f"the table has features unknown to this release, so {operation} leaves it alone",
            unknown,
            table,
            _NEWER,
            snapshot.version,
        )
    if unfit := features & _UNFIT.get(operation, {}).keys():
        reasons = "; ".join(f"{name}: {_UNFIT[operation][name]}" for name in sorted(unfit))
        raise UnsupportedFeatureError(
            f"{operation} is not possible ({reasons})",
            features=tuple(sorted(unfit)),
            table=table,
            version=snapshot.version,
            next_step=f"vacuum still works; for the {operation} use the engine that wrote the table",
        )
    if operation in {"rewrite", "delete", "update", "merge"}:
        _check_columns(snapshot)
    if operation in {"delete", "update", "merge"}:
        _check_not_append_only(snapshot, operation)
    if operation == "manifest":
        _check_manifest(snapshot)
    if managed or operation in {"rewrite", "delete", "update", "merge"}:
        _check_not_uniform(snapshot, operation)
    if operation not in {"vacuum", "log", "restore"}:  # a restore repairs it
        check_single(snapshot)
    if operation not in {"vacuum", "log", "restore", "manifest"}:
        check_stamped(snapshot)


def check_schema(snapshot: DeltaSnapshot) -> None:
    """Raise DamagedTableError for a version whose log has no schema: its files can be counted, but not read."""
    if not snapshot.metadata.schema_string:
        raise DamagedTableError(NO_SCHEMA, at=snapshot)


def stamps(metadata: Metadata) -> bool:
    """Whether commits must have in-commit timestamps (protocol: In-Commit Timestamps)."""
    return metadata.configuration.get("delta.enableInCommitTimestamps", "false").lower() == "true"


def lacks_stamp(snapshot: DeltaSnapshot) -> bool:
    """Whether the version's commit lacks the in-commit timestamp that it must have."""
    return snapshot.in_commit_timestamp is None and snapshot.segment.commit and stamps(snapshot.metadata)


def check_stamped(snapshot: DeltaSnapshot) -> None:
    """Raise DamagedTableError if the version's commit lacks its in-commit timestamp, as Spark does: the next one must
    be later.
    """
    if lacks_stamp(snapshot):
        raise DamagedTableError(
            UNSTAMPED,
            at=snapshot,
            next_step=Remedy(
                "restore an older version ({}); its commit has one again",
                (run("restore", snapshot.table, version=snapshot.version - 1),),
            ),
        )


def check_single(snapshot: DeltaSnapshot) -> None:
    """Refuse a version in which a file is live more than once: its rows are read more than once."""
    if snapshot.duplicate_paths:
        raise RefusedError(
            f"data file {snapshot.duplicate_paths[0]} is live twice with different deletion vectors",
            at=snapshot,
            next_step=Remedy("see {} for the version to restore", (run("fsck", snapshot.table),)),
        )


def _refuse_known(features: Iterable[str], table: str, version: int | None = None) -> None:
    """Refuse features that are known, with the reason of each."""
    names = sorted(features)
    known = [name for name in names if name in _LEFT_ALONE]
    if not known:
        return
    reasons = [f"{name}: {_LEFT_ALONE[name][0]}" if name in known else f"{name}: unknown here" for name in names]
    raise UnsupportedFeatureError(
        "; ".join(reasons),
        features=tuple(names),
        table=table,
        version=version,
        next_step=_LEFT_ALONE[known[0]][1],
    )


def _check_columns(snapshot: DeltaSnapshot) -> None:
    if not len(snapshot.schema) and snapshot.files.num_rows:
        raise RefusedError(
            "the table has files but no columns: a rewrite would lose all their values",
            at=snapshot,
            next_step=Remedy(
                "add a column, or restore a version with columns: see {}", (run("history", snapshot.table),)
            ),
        )


def _check_not_append_only(snapshot: DeltaSnapshot, operation: str) -> None:
    """Protocol: Append-only Tables."""
    if snapshot.metadata.configuration.get("delta.appendOnly", "").lower() == "true":
        raise RefusedError(
            f"the table is append-only (delta.appendOnly), so {operation} may not touch its rows",
            at=snapshot,
            next_step="set delta.appendOnly to false if its rows may be changed",
        )


def _check_not_uniform(snapshot: DeltaSnapshot, operation: str) -> None:
    """With UniForm, a commit must also write metadata of another format, which only the engine's own commits do."""
    formats = snapshot.metadata.configuration.get("delta.universalFormat.enabledFormats", "")
    if formats.strip():
        raise RefusedError(
            f"the table is kept readable as {formats} (delta.universalFormat.enabledFormats): readers of that format "
            "would not see the changed files",
            at=snapshot,
            next_step=_BY_THE_ENGINE if operation == "rewrite" else "use the engine that writes that format's metadata",
        )


def _check_manifest(snapshot: DeltaSnapshot) -> None:
    mode = snapshot.metadata.configuration.get("delta.columnMapping.mode", "none")
    if mode.lower() != "none":
        raise _unsupported(
            f"column mapping mode is {mode}: readers of manifests find columns by their logical names",
            ("columnMapping",),
            snapshot.table,
            "read the table with an engine that knows Delta Lake",
            snapshot.version,
        )


def _check_version(kind: str, version: int, newest: int, table: str) -> None:
    if not 1 <= version <= newest:
        raise UnsupportedFeatureError(
            f"the table needs {kind} version {version}, but this release knows 1 to {newest}",
            features=(f"{kind} version {version}",),
            table=table,
            next_step=_NEWER,
        )


def _check_consistent(protocol: Protocol, table: str) -> None:
    """Protocol: Table Features, "Reader/writer versions"."""
    readers, writers = protocol.reader_features, protocol.writer_features
    problem = None
    if readers is not None and protocol.min_reader != FEATURE_READER:
        problem = f"readerFeatures with minReaderVersion {protocol.min_reader}"
    elif readers is None and protocol.min_reader == FEATURE_READER:
        problem = f"minReaderVersion {FEATURE_READER} without readerFeatures"
    elif writers is not None and protocol.min_writer < FEATURE_WRITER:
        problem = f"writerFeatures with minWriterVersion {protocol.min_writer}"
    elif writers is None and protocol.min_writer == FEATURE_WRITER:
        problem = f"minWriterVersion {FEATURE_WRITER} without writerFeatures"
    elif protocol.min_reader == FEATURE_READER and protocol.min_writer < FEATURE_WRITER:
        problem = f"minReaderVersion {FEATURE_READER} with minWriterVersion {protocol.min_writer}"
    elif readers is not None and writers is not None and not readers <= writers:
        problem = f"{', '.join(sorted(readers - writers))} in readerFeatures but not in writerFeatures"
    if problem:
        raise DamagedTableError(
            f"the protocol contradicts itself: {problem}",
            table=table,
            next_step="repair the protocol with the engine that wrote it",
        )


def _unsupported(
    message: str, features: Iterable[str], table: str, next_step: str, version: int | None = None
) -> UnsupportedFeatureError:
    names = tuple(sorted(features))
    return UnsupportedFeatureError(
        f"{message}: {', '.join(names)}", features=names, table=table, version=version, next_step=next_step
    )
