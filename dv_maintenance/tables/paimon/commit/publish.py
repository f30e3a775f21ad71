"""Commits to a Paimon table: new files first, then a snapshot under a number not yet taken.

Protocol: commits of Paimon's specification. A snapshot names the manifests of all earlier commits (base), those of its
own changes (delta), and the whole index. If another writer took the number first, a writer reads the newest snapshot
and decides again. This package creates the snapshot file atomically, so two of its commits never share a number. On a
local disk, Paimon's own writers check whether the file exists and then rename. Between these steps, their rename could
overwrite a snapshot of this package, so each one is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow.compute as pc

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
    UsageError,
)
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.tables import publish as frame
from dv_maintenance.tables.new_files import NewFiles, create_once
from dv_maintenance.tables.paimon.commit.value_stats import partition_stats
from dv_maintenance.tables.paimon.layout import SNAPSHOT, table_layout
from dv_maintenance.tables.paimon.log.entries import Entry, filled, read_whole, written
from dv_maintenance.tables.paimon.log.manifests import ADD, DELETE
from dv_maintenance.tables.paimon.log.snapshots import BATCH, FORMAT, LATEST, USER, latest_version, load_snapshot_file
from dv_maintenance.tables.paimon.served import Target, statistics
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot, load_snapshot
from dv_maintenance.tables.paimon.writable import check_writable
from dv_maintenance.tables.publish import Overtaken, Published, Rules
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.commit.index_change import NewIndex
    from dv_maintenance.tables.paimon.layout import Layout

_FIRST_PAUSE: Final = 0.01  # seconds, as Paimon's commit.min-retry-wait
_LONGEST_PAUSE: Final = 2.0
_NOTHING: Final = "nothing was committed"

# Fields that each snapshot copies from its predecessor: no commit of this package changes them.
_INHERITED: Final = ("watermark", "statistics", "nextRowId", "logOffsets")


@dataclass(frozen=True, slots=True)
class Draft:
    """The changes that a snapshot makes.

    kind : Paimon's commit kind.
    entries : DELETE and ADD entries.
    index : the new index; ``None`` if it does not change.
    """

    kind: str
    entries: tuple[Entry, ...]
    index: NewIndex | None = None


Compose = Callable[[PaimonSnapshot], Draft | None]


def publish(
    target: Target, base: PaimonSnapshot, compose: Compose, *, writes: str, max_attempts: int = 10
) -> Published[Draft]:
    """Commit the draft that ``compose`` returns for the newest snapshot. If there is none newer, that is ``base``.

    writes : the operation, see ``check_writable``. It is checked again on each snapshot that another writer committed.

    Files of lost attempts are deleted.

    Raises
    ------
    ConflictError : other writers were faster in every attempt; nothing was committed.
    StorageError : the storage failed. The error says so if the commit may have happened nevertheless.
    DamagedTableError, UnsupportedFeatureError, RefusedError : about the newest snapshot; nothing was committed.
    """
    layout = table_layout(target.place)
    with frame.before_the_commit():
        check_writable(layout, base, writes)
    rules = _Rules(target, layout, base, compose, writes, now=base)
    return frame.publish(rules, max_attempts=max_attempts, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)


@dataclass(slots=True)
class _Rules(Rules[Draft]):
    """One commit in progress. Its outcome is decided by reading the snapshot back, not by searching the history: the
    snapshot may have expired before that search.
    """

    target: Target
    layout: Layout
    base: PaimonSnapshot
    compose: Compose
    writes: str
    now: PaimonSnapshot
    user: str = field(default_factory=lambda: f"{USER}{uuid4()}")
    newest: int | None = None  # the newest snapshot when the attempt began

    @property
    def table(self) -> str:
        return self.target.place.uri

    def catch_up(self) -> None:
        self.newest = latest_version(self.layout)
        with self._unless_expired():
            self.now = load_snapshot(self.target.place, known=self.now)
            check_writable(self.layout, self.now, self.writes)

    def draft(self) -> Draft | None:
        with self._unless_expired():
            return self.compose(self.now)

    def create(self, draft: Draft) -> int:
        files = NewFiles(self.layout.storage)
        version = self.now.version + 1
        path = self.layout.snapshot(version)
        try:
            with self._unless_expired():
                body = self._content(draft, files)
                # After a rollback and new commits up to the same number, this commit would bring back the rolled-back
                # state.
                another = self._base_is_another()
        except BaseException:
            files.discard()
            raise
        try:
            created = not another and self._create(path, body, draft)
        except StorageDeniedError:
            files.discard()
            raise
        if not created:
            files.discard()
            raise Overtaken(f"snapshot {version} already exists, building on it")
        try:
            another = self._base_is_another()
        except DvMaintenanceError as error:
            # The snapshot is in place: its files must stay.
            raise self._unsure(path, f"snapshot {self.now.version}, its base, could not be read again") from error
        if another:
            raise self._unsure(
                path, f"snapshot {self.now.version}, its base, was rolled back and replaced during the commit"
            )
        if self.target.server is None:
            self._point_to(version)
        return version

    def _create(self, path: str, body: Mapping[str, Any], draft: Draft) -> bool:
        """Make the snapshot, or let the server make it; whether that was done. Raises as ``create_once``."""
        server = self.target.server
        if server is None:
            content = orjson.dumps(body, option=orjson.OPT_INDENT_2)
            return create_once(self.layout.storage, path, content, self._unsure)
        failure: StorageError | None = None
        try:
            if server.submit(body, statistics(self.now, draft.entries)):
                return True
        except StorageDeniedError:
            raise
        except StorageError as error:
            failure = error
        # It refuses a number that is taken, by another writer or by this one: an answer may be lost, and the request
        # repeated.
        try:
            found = load_snapshot_file(self.layout, body["id"])
        except UsageError as error:
            why = "the server says that it did not make it" if failure is None else failure.message
            raise self._unsure(path, f"{why}, and it is not there") from error
        except DvMaintenanceError as error:
            raise self._unsure(path, str(error)) from error
        return found is not None and found.commit_user == self.user

    def defeat(self, attempts: int) -> ConflictError:
        return ConflictError(
            f"other writers committed first in all {attempts} attempts",
            at=self.base,
            done=_NOTHING,
            next_step="run again when the table is less busy",
        )

    @contextmanager
    def _unless_expired(self) -> Iterator[None]:
        """A concurrent writer may expire files before they are read. Then a missing file is a lost race, not damage."""
        try:
            yield
        except DamagedTableError as damage:
            if latest_version(self.layout) == self.newest:
                raise
            raise Overtaken(f"the snapshot expired while it was read: {damage.message}") from damage

    def _base_is_another(self) -> bool:
        """Whether the base snapshot was replaced since it was read. ``False`` if it is gone: then it has expired."""
        try:
            found = load_snapshot_file(self.layout, self.now.version)
        except UsageError:
            return False
        return found is None or self.now.file is None or found.body != self.now.file.body

    def _unsure(self, path: str, why: str) -> StorageUnavailableError:
        error = StorageUnavailableError(
            f"{path}: {why}",
            at=self.now,
            next_step=f"look for the commit user {self.user} in the history, then run again",
        )
        error.done = "it is not known whether the snapshot was committed; nothing was deleted"
        return error

    def _point_to(self, version: int) -> None:
        """Update the hint. Failures are ignored: readers check the hint, and a stale one only costs them a listing."""
        with suppress(StorageError):
            self.layout.storage.put(f"{self.layout.own}{SNAPSHOT}/{LATEST}", str(version).encode())

    # -- one snapshot ----------------------------------------------------------------------------------------------

    def _content(self, draft: Draft, files: NewFiles) -> dict[str, Any]:
        """Write the files that the snapshot names. Returns the content of the snapshot file."""
        before, layout = self.now.file, self.layout
        if before is None:
            raise AssertionError("a table without a snapshot has no files to change")
        delta_template, delta = read_whole(layout, before.delta_list, before.id)
        base_template, base = read_whole(layout, before.base_list, before.id)
        # The lists may be from writers of different releases. The schema with more fields keeps all values.
        template = max(delta_template, base_template, key=lambda each: len(each.fields()))
        types = template.fields()
        name = str(uuid4())
        new: list[dict[str, Any]] = []
        for number, (data, records) in enumerate(written(draft.entries)):
            manifest = f"manifest-{name}-{number}"
            files.put(layout.manifest(manifest), data)
            new.append(self._list_record(template, manifest, len(data), records))
        kept = [filled(record, types, "manifest lists") for record in [*base, *delta]]
        sizes = {}
        for index, (key, listed) in enumerate((("baseManifestList", kept), ("deltaManifestList", new))):
            try:
                data = write_records(template, listed)
            except ValueError as error:
                # Only if the schema has a field that Paimon does not know, without a default.
                raise DamagedTableError(
                    f"the schema of snapshot {before.id}'s manifest lists does not fit their entries: {error}",
                    table=self.table,
                    version=before.id,
                    done="nothing was committed",
                ) from error
            files.put(layout.manifest(f"manifest-list-{name}-{index}"), data)
            sizes[key] = (f"manifest-list-{name}-{index}", len(data))
        index_manifest = before.index_manifest
        if draft.index is not None:
            index_manifest = self._put_index(draft.index, name, files)
        rows = sum((1 if each.record["_KIND"] == ADD else -1) * each.file["_ROW_COUNT"] for each in draft.entries)
        old = before.body
        total = old.get("totalRecordCount")  # which the first writers left out
        if total is None:
            total = pc.sum(self.now.files["physical_rows"]).as_py() or 0
        return {
            "version": FORMAT,
            **{key: old[key] for key in _INHERITED if old.get(key) is not None},
            "id": before.id + 1,
            "schemaId": self.now.table_schema.id,
            **{key: list_name for key, (list_name, _) in sizes.items()},
            **({f"{key}Size": size for key, (_, size) in sizes.items()} if "deltaManifestListSize" in old else {}),
            "changelogManifestList": None,
            **({} if index_manifest is None else {"indexManifest": index_manifest}),
            "commitUser": self.user,
            "commitIdentifier": BATCH,
            "commitKind": draft.kind,
            "timeMillis": max(epoch_millis(), before.timestamp),
            "totalRecordCount": total + rows,
            "deltaRecordCount": rows,
            "changelogRecordCount": 0,
            **({"uuid": str(uuid4())} if "uuid" in old else {}),
        }

    def _list_record(
        self, template: Template, name: str, size: int, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        files = [record["_FILE"] for record in records]
        buckets = [record["_BUCKET"] for record in records]
        levels = [file["_LEVEL"] for file in files]
        schema = self.now.table_schema
        values = {
            "_VERSION": 2,
            "_FILE_NAME": name,
            "_FILE_SIZE": size,
            "_NUM_ADDED_FILES": sum(record["_KIND"] == ADD for record in records),
            "_NUM_DELETED_FILES": sum(record["_KIND"] == DELETE for record in records),
            "_PARTITION_STATS": partition_stats(
                [record["_PARTITION"] for record in records], schema.partition_fields()
            ),
            "_SCHEMA_ID": schema.id,
            "_MIN_BUCKET": min(buckets),
            "_MAX_BUCKET": max(buckets),
            "_MIN_LEVEL": min(levels),
            "_MAX_LEVEL": max(levels),
        }
        return filled(values, template.fields(), "manifest lists")

    def _put_index(self, index: NewIndex, name: str, files: NewFiles) -> str | None:
        for path, data in index.files.items():
            files.put(path, data)
        if index.manifest is None:
            return None
        files.put(self.layout.manifest(f"index-manifest-{name}-0"), index.manifest)
        return f"index-manifest-{name}-0"
