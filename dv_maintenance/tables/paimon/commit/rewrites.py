"""Commit rewrites: one COMPACT snapshot in which new files hold the live rows of old ones.

Every attempt checks the replacements against the newest snapshot. Like Paimon's writers, it compares each data file
together with its deletion vector (DV). If another writer deleted rows of an input concurrently, the new files are kept:
these rows are deleted in the new files as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, strings
from dv_maintenance.tables.gates import Input, check_replacements, check_stored, wrong
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.commit.cuts import Cuts
from dv_maintenance.tables.paimon.commit.index_change import index_change, load_dv
from dv_maintenance.tables.paimon.commit.publish import Draft, publish
from dv_maintenance.tables.paimon.commit.value_stats import EMPTY_ROW, NO_STATS, file_stats
from dv_maintenance.tables.paimon.layout import table_layout
from dv_maintenance.tables.paimon.log.entries import Entry, FileId, added_entries, filled, newest_template, removal
from dv_maintenance.tables.paimon.log.index_manifest import DvEntry
from dv_maintenance.tables.paimon.log.manifests import ADD
from dv_maintenance.tables.paimon.log.schema import read_schema
from dv_maintenance.tables.paimon.log.snapshots import COMPACT, read_snapshot_file
from dv_maintenance.tables.paimon.rows import keyed, lines
from dv_maintenance.tables.paimon.rows.evolution import others_of, parts_with
from dv_maintenance.tables.paimon.rows.formats import written_columns, written_schema
from dv_maintenance.tables.paimon.rows.row_id_ranges import live_ranges
from dv_maintenance.tables.paimon.rows.tasks import Scan
from dv_maintenance.tables.publish import before_the_commit
from dv_maintenance.tables.staying import Stay, outcome_of
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.files.avro.writer import Template
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.served import Target
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.table import CommitOutcome, Replacement
    from dv_maintenance.tables.work import OutputFile

_COMPACTED: Final = 1
_EXPIRED: Final = "its planned deletion vectors have expired"
_COLUMNS: Final = [
    "path",
    "file_name",
    "bucket",
    "partition_code",
    "partition",
    "dv_id",
    "physical_rows",
    "deleted_rows",
    "manifest",
]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live data file and its DV."""

    id: FileId
    key: FileKey
    partition: str
    rows: int
    deleted_rows: int
    dv: DvEntry | None
    manifest: int


def live_files(snapshot: PaimonSnapshot, names: set[str]) -> dict[FileId, LiveFile]:
    """The live files that have one of the ``names``, by their id."""
    dvs = {dv.id: dv for dv in snapshot.index.dvs}
    files = snapshot.files.filter(pc.is_in(snapshot.files["file_name"], value_set=strings(sorted(names))))
    found = {}
    for row in files.select(_COLUMNS).to_pylist():
        file = (snapshot.partitions[row["partition_code"]].row, row["bucket"], row["file_name"])
        key = FileKey(row["path"], row["dv_id"])
        dv = dvs[row["dv_id"]] if row["dv_id"] is not None else None
        found[file] = LiveFile(
            file, key, row["partition"], row["physical_rows"], row["deleted_rows"], dv, row["manifest"]
        )
    return found


def commit_replacements(
    target: Target,
    base: PaimonSnapshot,
    replacements: Sequence[Replacement],
    *,
    operation: Mapping[str, Any],
    max_attempts: int = 10,
) -> CommitOutcome:
    """Commit the replacements that are still valid, see ``Table.commit``.

    Raises
    ------
    VerificationError : the replacements would change what a query returns; nothing was committed.
    ConflictError, StorageError, DamagedTableError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    del operation  # a snapshot has no place for it
    inputs = {key for each in replacements for key in each.inputs}
    names = {key.path.rpartition("/")[2] for key in inputs}
    live = {file.key: file for file in live_files(base, names).values() if file.key in inputs}
    with before_the_commit():
        layout = table_layout(target.place)
        _verify(layout, base, replacements, live)
    commit = _Commit(layout, base, replacements, live)
    with commit.cuts.named_by_the_commit():
        published = publish(target, base, commit.compose, writes="rewrite", max_attempts=max_attempts)
    draft = published.draft
    commit.cuts.discard(() if draft is None else [entry.id[2] for entry in draft.entries])
    moved = {} if draft is None or draft.index is None else draft.index.moved
    return replace(outcome_of(published, commit.stay, commit.lost, lambda file: file.key), moved=moved)


@dataclass(slots=True)
class _Commit:
    """The commit, decided again in each attempt.

    live : inputs that are live at the base snapshot.
    stay : id -> replacement that can be committed on the newest snapshot.
    lost : id -> why a replacement is lost.
    cuts : the new files of blobs, videos and vectors.
    """

    layout: Layout
    base: PaimonSnapshot
    replacements: Sequence[Replacement]
    live: Mapping[FileKey, LiveFile]
    stay: dict[str, Stay[LiveFile]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    _entries: dict[FileId, Entry] = field(default_factory=dict)
    _template: Template | None = None
    _dvs: dict[str, DeletionVector] = field(default_factory=dict)
    _moved: tuple[int, bool] | None = None
    _barred: dict[str, str] = field(default_factory=dict)
    cuts: Cuts = field(init=False)

    def __post_init__(self) -> None:
        self.cuts = Cuts(self.layout, self.base)

    def compose(self, now: PaimonSnapshot) -> Draft | None:
        self._decide(now)
        if not self.stay:
            return None
        groups = {
            each: {file.id: file.manifest for file in stay.inputs} | others_with(now, stay.inputs)
            for each, stay in self.stay.items()
        }
        wanted = {file: at for group in groups.values() for file, at in group.items() if file not in self._entries}
        # Read from the newest snapshot: manifests of the base may have expired while the new files were written.
        self._entries |= added_entries(self.layout, now, wanted)
        self._template = self._template or newest_template(self.layout, now)
        entries: list[Entry] = []
        gone: set[FileId] = set()
        fresh: dict[FileId, DeletionVector] = {}
        for each in self.replacements:
            if (stay := self.stay.get(each.id)) is None:
                continue
            entries += [removal(self._entries[file]) for file in groups[each.id]]
            gone |= {*groups[each.id]}
            firsts = self._first_row_ids(each)
            for output, deleted, first in zip(each.outputs, stay.deleted, firsts, strict=True):
                if deleted and deleted.cardinality == output.rows:
                    continue  # a file without live rows
                entry = self._addition(each, output, [self._entries[file] for file in groups[each.id]], now, first)
                entries.append(entry)
                if deleted:
                    fresh[entry.id] = deleted
                if first is not None:
                    rows = range(first, first + output.rows)
                    entries += self.cuts.of((self._entries[file] for file in groups[each.id]), output.uri, rows)
        return Draft(COMPACT, tuple(entries), index_change(self.layout, now, gone, fresh, self._dvs))

    def _decide(self, now: PaimonSnapshot) -> None:
        self.stay, self.lost = {}, {}
        _check_new(now, [output.uri.rpartition("/")[2] for each in self.replacements for output in each.outputs])
        found = live_files(now, {file.id[2] for file in self.live.values()})
        self._barred = {
            path: reason
            for reason, files in now.barred().items()
            for path in now.files["path"].filter(bools(files)).to_pylist()
        }
        for each in self.replacements:
            stay = self._stay(each, now, found)
            if isinstance(stay, str):
                self.lost[each.id] = stay
            else:
                self.stay[each.id] = stay

    def _stay(self, each: Replacement, now: PaimonSnapshot, found: Mapping[FileId, LiveFile]) -> Stay[LiveFile] | str:
        """The replacement as it can be committed, or why it is lost."""
        inputs: list[LiveFile | None] = []
        for key in each.inputs:
            if key not in self.live:
                return f"{key.path} was not live at the planned snapshot"
            file = found.get(self.live[key].id)
            if file is None and self._compacted(now):
                return f"another writer rewrote {key.path}, or may have"
            if file is not None and file.key.path in self._barred:
                return f"{key.path} may not be rewritten now: {self._barred[file.key.path]}"
            inputs.append(file)
        left = tuple(file for file in inputs if file is not None)
        none = (DeletionVector.empty(),) * len(each.outputs)
        if each.outputs and now.options.data_evolution:
            if others_with(self.base, left).keys() != others_with(now, left).keys():
                return "another writer changed columns of rows in its inputs"
            if not all(self._readable(self.live[key]) for key in each.inputs):
                return _EXPIRED
        carried = tuple(None if file is None else file.key for file in inputs) != each.inputs
        if not carried:
            return Stay(left, none, carried=False)
        pairs = [(self.live[key], file) for key, file in zip(each.inputs, inputs, strict=True)]
        if any(old.dv is not None and not self._readable(old) for old, _ in pairs):
            return f"other writers deleted rows of its inputs, and {_EXPIRED}"
        # Other DVs in the index files may have changed: then these moved, but name the same rows.
        if all(new is not None and self._dv(old) == self._dv(new) for old, new in pairs):
            return Stay(left, none, carried=True)
        if not each.kept:
            return "another writer deleted rows of its inputs, and where these rows are in the new files is unknown"
        if not now.options.deletion_vectors:
            return "another writer deleted rows of its inputs, and the table no longer allows deletion vectors"
        sources = []
        for (old, new), kept in zip(pairs, each.kept, strict=True):
            newer = None if new is None else self._dv(new)
            if newer is not None and self._dv(old) - newer:
                return f"another writer restored rows of {old.key.path}"
            sources.append(Source(kept, self._dv(old), newer))
        deleted = carry_over(sources, [output.rows for output in each.outputs])
        if all(dv.cardinality == output.rows for dv, output in zip(deleted, each.outputs, strict=True)):
            return "other writers deleted all of its rows"
        return Stay(left, tuple(deleted), carried=True)

    def _compacted(self, now: PaimonSnapshot) -> bool:
        """Whether rows of a removed file may now be in other files. Only a compaction moves rows. If there was none
        since the base, the rows were deleted.
        """
        if self._moved is None or self._moved[0] != now.version:
            self._moved = (now.version, _rows_moved(self.layout, self.base.version, now.version))
        return self._moved[1]

    def _readable(self, file: LiveFile) -> bool:
        try:
            self._dv(file)
        except DamagedTableError:
            return False
        return True

    def _dv(self, file: LiveFile) -> DeletionVector:
        if file.dv is None:
            return DeletionVector.empty()
        if file.dv.id not in self._dvs:
            self._dvs[file.dv.id] = load_dv(self.layout, file.dv)
        return self._dvs[file.dv.id]

    def _first_row_ids(self, each: Replacement) -> list[int | None]:
        """The first row id of each new file, if they hold ranges of row ids, see ``row_id_ranges``."""
        if not each.outputs or not self.base.options.data_evolution:
            return [None] * len(each.outputs)
        file = self.live[each.inputs[0]]
        ranges = live_ranges(self._dv(file), file.rows)
        if len(each.inputs) > 1 or [stop - start for start, stop in ranges] != [output.rows for output in each.outputs]:
            raise wrong(self.base, f"the new files of replacement {each.id} do not end where its row ids have gaps")
        first = self._entries[file.id].file["_FIRST_ROW_ID"]
        return [first + start for start, _ in ranges]

    def _written(self, replacement: Replacement) -> Schema:
        """The columns of its new files."""
        if not self.base.options.data_evolution:
            return written_schema(self.base)
        path = replacement.inputs[0].path
        (row,) = self.base.files.filter(pc.equal(self.base.files["path"], path)).to_pylist()
        scan = Scan(self.layout, self.base, (), parts_with(self.base.parts, [path]), moving=True)
        return replace(self.base.table_schema, fields=scan.written(row))

    def _addition(
        self,
        replacement: Replacement,
        output: OutputFile,
        inputs: Sequence[Entry],
        now: PaimonSnapshot,
        first_row_id: int | None,
    ) -> Entry:
        """The manifest entry of a new file, with the schema of the table's newest manifests."""
        template, first = self._template, inputs[0]
        schema = self._written(replacement)
        if now.options.primary_key or lines.is_of_lines(output.uri):
            schema = read_schema(self.layout, first.file["_SCHEMA_ID"])
        assert template is not None, "templates are read before the first entry"
        values = {
            "_FILE_NAME": output.uri.rpartition("/")[2],
            "_FILE_SIZE": output.size,
            "_ROW_COUNT": output.rows,
            "_MIN_KEY": EMPTY_ROW,
            "_MAX_KEY": EMPTY_ROW,
            "_KEY_STATS": NO_STATS,
            "_VALUE_STATS": file_stats(schema, output.stats),
            "_MIN_SEQUENCE_NUMBER": min(each.file["_MIN_SEQUENCE_NUMBER"] for each in inputs),
            "_MAX_SEQUENCE_NUMBER": max(each.file["_MAX_SEQUENCE_NUMBER"] for each in inputs),
            "_SCHEMA_ID": schema.id,
            # Alone, the rows of a clustered file keep their order. Merged, they wait for the next clustering.
            "_LEVEL": first.file["_LEVEL"] if len(replacement.inputs) == 1 and not replacement.order_by else 0,
            "_EXTRA_FILES": [],
            "_CREATION_TIME": output.modified or epoch_millis(),
            "_DELETE_ROW_COUNT": 0,
            "_FILE_SOURCE": _COMPACTED,
            "_FIRST_ROW_ID": first_row_id,
            "_WRITE_COLS": written_columns(self.base, schema),
        }
        if now.options.primary_key:
            values = keyed.rewritten(first.file, values)
        record = {
            "_VERSION": first.record["_VERSION"],
            "_KIND": ADD,
            "_PARTITION": first.record["_PARTITION"],
            "_BUCKET": first.record["_BUCKET"],
            "_TOTAL_BUCKETS": first.record["_TOTAL_BUCKETS"],
            "_FILE": filled(values, template.fields("_FILE"), "data files"),
        }
        return Entry(template, filled(record, template.fields(), "manifests"))


def others_with(now: PaimonSnapshot, files: Iterable[LiveFile]) -> dict[FileId, int]:
    """With data evolution, the files of other columns of the same rows, and their manifests."""
    found = others_of(now.parts, [file.key.path for file in files])
    return {
        (now.partitions[row["partition_code"]].row, row["bucket"], row["file_name"]): row["manifest"]
        for row in found.select(_COLUMNS).to_pylist()
    }


def _rows_moved(layout: Layout, since: int, version: int) -> bool:
    """Whether a snapshot after ``since`` is a compaction. Also true if one has expired, since its kind is unknown."""
    try:
        return version <= since or any(
            read_snapshot_file(layout, number).kind == COMPACT for number in range(since + 1, version + 1)
        )
    except FileNotFoundError:
        return True


# -- gates -------------------------------------------------------------------------------------------------------


def _verify(
    layout: Layout, base: PaimonSnapshot, replacements: Sequence[Replacement], live: Mapping[FileKey, LiveFile]
) -> None:
    """Refuse replacements that are wrong regardless of concurrent commits. A replacement with an input that is not
    live at ``base`` is not checked, because it is lost anyway.
    """
    inputs = {key: Input(file.partition, file.rows, file.deleted_rows) for key, file in live.items()}
    check_replacements(layout.storage, base, replacements, inputs)
    for each in replacements:
        # Compare partition and bucket, not only the name of the partition.
        if len({live[key].id[:2] for key in each.inputs if key in live}) > 1:
            raise wrong(base, f"replacement {each.id} has inputs of several partitions or buckets")
    outputs = [output for each in replacements for output in each.outputs]
    _check_new(base, [output.uri.rpartition("/")[2] for output in outputs])
    check_stored(layout.storage, base, outputs)


def _check_new(now: PaimonSnapshot, names: Sequence[str]) -> None:
    """Refuse new files that have the name of a live one. The error is not a VerificationError: after one, the caller
    deletes the new files, and this file is live.
    """
    if taken := live_files(now, set(names)):
        raise DamagedTableError(
            f"a new file has the name of a live one: {min(taken)[2]}",
            at=now,
            next_step="search the history: a commit of this run may have succeeded",
        )
