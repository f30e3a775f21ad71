"""A dry run ends as the real run does: the same exit code, the same reason. And it changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.cli import main
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000
DELETE = ("delete", "--where", "id = 5")
UPDATE = ("update", "--set", "v = 'new'", "--where", "id = 5")
MERGE = (
    *("merge", "--using", "{source}", "--on", "target.id = source.id"),
    *("--when", "MATCHED THEN UPDATE SET *", "--when", "NOT MATCHED THEN INSERT *"),
)
PURGE = ("purge", "--engine", "local")
APPLY = ("apply", "--engine", "local", "--set", "max_deleted_ratio=0")
ZORDER = ("zorder", "--columns", "id", "--engine", "local")
VACUUM = ("vacuum", "--retention", "0s", "--allow-short-retention")
MANIFEST = ("manifest",)
AFTER_PURGE = ("manifest", "--purge-first", "--engine", "local")
DOWNGRADE = ("downgrade", "--engine", "local")


class Scene:
    """A table of two files in two partitions, one of them with deleted rows, and a folder beside it."""

    def __init__(self, backend: TableBackend, path: Path) -> None:
        self.backend, self.path = backend, path
        self.beside = path.with_name("beside")
        self.beside.mkdir()
        source = pa.table({"id": pa.array([5, 77], pa.int64()), "p": ["a", "a"], "v": ["x", "y"]})
        pq.write_table(source, self.beside / "source.parquet")
        backend.create()
        backend.append("a", [(at, "a", "x") for at in range(100)])
        backend.append("b", [(at, "b", "x") for at in range(100, 200)])
        backend.delete([1, 2, 3])

    @property
    def files(self) -> dict[str, bytes]:
        places = (self.path, self.beside)
        return {str(file): file.read_bytes() for place in places for file in place.rglob("*") if file.is_file()}

    def file(self, kind: str) -> Path:
        table: Any = self.backend.open()
        rows = table.needed_files(table.snapshot()).to_pylist()
        return self.path / min(row["path"] for row in rows if row["kind"] == kind and "p=b" not in row["path"])

    def to_link(self, folder: str) -> None:
        """Replace a folder by a link to its content elsewhere."""
        moved = self.beside / "elsewhere"
        (self.path / folder).mkdir(exist_ok=True)
        (self.path / folder).rename(moved)
        (self.path / folder).symlink_to(moved)

    def property(self, **values: str | None) -> None:
        """Set or unset properties of a Delta table in its log."""
        log = sorted((self.path / "_delta_log").glob("*.json"))
        action = next(found for line in log[0].read_text().splitlines() if "metaData" in (found := json.loads(line)))
        for name, value in values.items():
            name = name.replace("__", ".")
            if value is None:
                action["metaData"]["configuration"].pop(name, None)
            else:
                action["metaData"]["configuration"][name] = value
        (self.path / "_delta_log" / f"{len(log):020d}.json").write_text(json.dumps(action))

    def schema(self, change: Callable[[dict[str, Any]], None]) -> None:
        log = sorted((self.path / "_delta_log").glob("*.json"))
        action = next(found for line in log[0].read_text().splitlines() if "metaData" in (found := json.loads(line)))
        schema = json.loads(action["metaData"]["schemaString"])
        change(schema)
        action["metaData"]["schemaString"] = json.dumps(schema)
        (self.path / "_delta_log" / f"{len(log):020d}.json").write_text(json.dumps(action))


@dataclass(frozen=True)
class Case:
    """``code``: of both runs. ``says``: part of both reasons."""

    argv: Sequence[str]
    spoil: Callable[[Scene], object]
    code: int
    says: str = ""
    made: Callable[[str], TableBackend] = DeltaBackend
    needs_spark: bool = False


def option(**options: str) -> Callable[[str], TableBackend]:
    return lambda place: PaimonBackend(
        place, properties={name.replace("__", "."): each for name, each in options.items()}
    )


def v1(place: str) -> TableBackend:
    return LanceBackend(place, enable_v2_manifest_paths=False)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def nothing(_: Scene) -> None:
    pass


def link(folder: str) -> Callable[[Scene], None]:
    return lambda scene: scene.to_link(folder)


def properties(**values: str | None) -> Callable[[Scene], None]:
    return lambda scene: scene.property(**values)


def unknown_feature(scene: Scene) -> None:
    scene.backend.forbid()


def missing_file(scene: Scene) -> None:
    scene.file("data").unlink()


def cut_vectors(scene: Scene) -> None:
    file = scene.file("dv")
    file.write_bytes(file.read_bytes()[:-7])


def required(scene: Scene) -> None:
    def change(schema: dict[str, Any]) -> None:
        schema["fields"][2]["nullable"] = False

    scene.schema(change)


def purged(scene: Scene) -> None:
    assert main(["purge", str(scene.path), "--engine", "local"]) == 0
    time.sleep(0.01)


def purged_and(then: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        purged(scene)
        then(scene)

    return spoil


def vacuumed(*options: str) -> Callable[[Scene], None]:
    return purged_and(lambda scene: main(["vacuum", str(scene.path), *VACUUM[1:], *options]))


def aside_behind_a_link(scene: Scene) -> None:
    vacuumed("--quarantine")(scene)
    scene.to_link("p=a")


def no_log(scene: Scene) -> None:
    shutil.rmtree(scene.path / "_delta_log")


def no_log_and(column: str = "id") -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        no_log(scene)
        for file in scene.path.rglob("*.parquet"):
            rows = pq.read_table(file, partitioning=None)
            pq.write_table(rows.rename_columns([column, *rows.column_names[1:]]), file)

    return spoil


def log_elsewhere(scene: Scene) -> None:
    no_log(scene)
    scene.to_link("_delta_log")


def line_break(scene: Scene) -> None:
    purged(scene)
    (file,) = (scene.path / "p=b").glob("*.parquet")
    file.rename(file.with_name("a\nb.parquet"))
    for entry in (scene.path / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(file.name, "a%0Ab.parquet"))


def protected_checkpoints(scene: Scene) -> None:
    properties(delta__requireCheckpointProtectionBeforeVersion="100")(scene)
    log = scene.path / "_delta_log"
    action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}}
    action["protocol"]["writerFeatures"] = ["deletionVectors", "checkpointProtection"]  # type: ignore[assignment]
    (log / f"{len(list(log.glob('*.json'))):020d}.json").write_text(json.dumps(action))


def other_table(scene: Scene) -> None:
    other = DeltaBuilder(str(scene.beside / "other")).create(pa.schema([("id", pa.int64())]))
    other.append(pa.table({"id": [1]}))
    plan(scene, scene.beside / "other")


def plan(scene: Scene, of: Path | None = None) -> None:
    assert main(["plan", str(of or scene.path), "-o", str(scene.beside / "plan.json")]) == 0


def two_calendars(scene: Scene) -> None:
    """Ancient dates, in one file with and in another without the keys of their calendar."""
    day = pa.array([-400_000], pa.int32()).cast(pa.date32())
    builder = DeltaBuilder(str(scene.path))
    scene.schema(
        lambda schema: schema["fields"].append({"name": "d", "type": "date", "nullable": True, "metadata": {}})
    )
    rows = pa.table({"id": pa.array([300], pa.int64()), "p": ["a"], "v": ["x"], "d": day})
    builder.append(rows)
    known = set(scene.path.rglob("*.parquet"))
    builder.append(rows)
    (file,) = set(scene.path.rglob("*.parquet")) - known
    found = pq.read_table(file, partitioning=None)
    sizes = str(file.stat().st_size)
    with pq.ParquetWriter(file, found.schema.with_metadata({"org.apache.spark.version": "4.1.0"})) as writer:
        writer.write_table(found)
    for entry in (scene.path / "_delta_log").glob("*.json"):
        text = entry.read_text()
        if file.name in text:
            entry.write_text(text.replace(f'"size":{sizes}', f'"size":{file.stat().st_size}'))


CASES = {
    "purge": Case(PURGE, nothing, 0),
    "purge: features": Case(PURGE, unknown_feature, 3, "fromTheFuture"),
    "purge: codec": Case(PURGE, properties(delta__parquet__compression__codec="lzo"), 3, "lzo"),
    "purge: log behind a link": Case(PURGE, link("_delta_log"), 3, "which is a link"),
    "purge: files behind a link": Case(PURGE, link("p=a"), 3, "which is a link"),
    "purge: no file": Case(PURGE, missing_file, 5, "does not exist"),
    "purge: vectors cut off": Case(PURGE, cut_vectors, 5, "deletion vector in"),
    "purge: no such partition": Case((*PURGE, "--partition", "p=z"), nothing, 2, "p=z"),
    "purge: partition": Case((*PURGE, "--partition", "p=a"), nothing, 0),
    "apply: features": Case(APPLY, unknown_feature, 3, "fromTheFuture"),
    "apply: codec": Case(APPLY, properties(delta__parquet__compression__codec="lzo"), 3, "lzo"),
    "apply: no file": Case(APPLY, missing_file, 5, "does not exist"),
    "apply: log behind a link": Case(APPLY, link("_delta_log"), 3, "which is a link"),
    "apply: plan of another table": Case(
        ("apply", "--engine", "local", "--plan", "{beside}/plan.json"), other_table, 2, "the plan is for"
    ),
    "zorder": Case(ZORDER, nothing, 0),
    "zorder: codec": Case(ZORDER, properties(delta__parquet__compression__codec="lzo"), 3, "lzo"),
    "zorder: no file": Case(ZORDER, missing_file, 5, "does not exist"),
    "zorder: vectors cut off": Case(ZORDER, cut_vectors, 5, "deletion vector in"),
    "zorder: log behind a link": Case(ZORDER, link("_delta_log"), 3, "which is a link"),
    "zorder: two calendars": Case(ZORDER, two_calendars, 3, "name the calendar"),
    "vacuum": Case(VACUUM, purged, 0),
    "vacuum: features": Case(VACUUM, unknown_feature, 3, "fromTheFuture"),
    "vacuum: too much": Case((*VACUUM, "--max-deleted-share", "0.01"), purged, 3, "max_deleted_share"),
    "vacuum: log behind a link": Case(VACUUM, purged_and(link("_delta_log")), 3, "which is a link"),
    "vacuum: quarantine behind a link": Case(
        (*VACUUM, "--quarantine"), purged_and(link("_dvm_quarantine")), 3, "which is a link"
    ),
    "undelete": Case(("undelete",), vacuumed("--quarantine"), 0),
    "undelete: behind a link": Case(("undelete",), aside_behind_a_link, 3, "which is a link"),
    "restore": Case(("restore", "--version", "2"), nothing, 0),
    "restore: no files": Case(("restore", "--version", "2"), vacuumed(), 3, "no longer exist"),
    "restore: log behind a link": Case(("restore", "--version", "2"), link("_delta_log"), 3, "which is a link"),
    "convert": Case(("convert", "--partition-by", "p STRING"), no_log, 0),
    "convert: type of a partition": Case(("convert", "--partition-by", "p INT"), no_log, 3, "'a'"),
    "convert: name of a column": Case(
        ("convert", "--partition-by", "p STRING"), no_log_and("a b"), 3, "may not be called"
    ),
    "convert: log behind a link": Case(("convert", "--partition-by", "p STRING"), log_elsewhere, 3, "which is a link"),
    "manifest": Case(MANIFEST, purged, 0),
    "manifest: deletion vectors": Case(MANIFEST, nothing, 3, "have deletion vectors"),
    "manifest: line break": Case(MANIFEST, line_break, 3, "line break"),
    "manifest: behind a link": Case(MANIFEST, purged_and(link("_symlink_format_manifest")), 3, "which is a link"),
    "manifest after a purge": Case(AFTER_PURGE, nothing, 0),
    "manifest after a purge: codec": Case(AFTER_PURGE, properties(delta__parquet__compression__codec="lzo"), 3, "lzo"),
    "manifest after a purge: behind a link": Case(AFTER_PURGE, link("_symlink_format_manifest"), 3, "which is a link"),
    "checkpoint": Case(("checkpoint",), nothing, 0),
    "checkpoint: protected": Case(("checkpoint",), protected_checkpoints, 3, "allows no new checkpoints"),
    "checkpoint: log behind a link": Case(("checkpoint",), link("_delta_log"), 3, "which is a link"),
    "checkpoint: retention": Case(
        ("checkpoint", "--clean-log"), properties(delta__logRetentionDuration="nonsense"), 3, "nonsense"
    ),
    "downgrade: log behind a link": Case(DOWNGRADE, link("_delta_log"), 3, "which is a link"),
    "downgrade: no file": Case(DOWNGRADE, missing_file, 5, "does not exist"),
    "downgrade: codec": Case(DOWNGRADE, properties(delta__parquet__compression__codec="lzo"), 3, "lzo"),
    "downgrade: retention": Case(DOWNGRADE, properties(delta__deletedFileRetentionDuration="nonsense"), 3, "nonsense"),
    "recount": Case(("recount",), nothing, 0),
    "recount: no file": Case(("recount",), missing_file, 5, "does not exist"),
    "delete": Case(DELETE, nothing, 0, needs_spark=True),
    "delete: nothing matches": Case(("delete", "--where", "id = -1"), nothing, 0, needs_spark=True),
    "delete: a whole partition": Case(
        ("delete", "--where", "p = 'a'"), properties(delta__enableDeletionVectors="false"), 0, needs_spark=True
    ),
    "delete: no deletion vectors": Case(
        DELETE, properties(delta__enableDeletionVectors=None), 3, "does not allow deletion vectors", needs_spark=True
    ),
    "delete by keys: no deletion vectors": Case(
        ("delete", "--keys", "{source}", "--on", "id"),
        properties(delta__enableDeletionVectors="false"),
        3,
        "does not allow deletion vectors",
        needs_spark=True,
    ),
    "delete: append-only": Case(DELETE, properties(delta__appendOnly="true"), 3, "append-only", needs_spark=True),
    "delete: log behind a link": Case(DELETE, link("_delta_log"), 3, "which is a link", needs_spark=True),
    "delete: vectors cut off": Case(DELETE, cut_vectors, 5, "deletion vector in", needs_spark=True),
    "update": Case(UPDATE, nothing, 0, needs_spark=True),
    "update: no deletion vectors": Case(
        UPDATE, properties(delta__enableDeletionVectors="false"), 3, "does not allow deletion vectors", needs_spark=True
    ),
    "update: a rule": Case(UPDATE, properties(delta__constraints__old="v = 'x'"), 3, "v = 'x'", needs_spark=True),
    "update: files behind a link": Case(UPDATE, link("p=a"), 3, "which is a link", needs_spark=True),
    "merge": Case(MERGE, nothing, 0, needs_spark=True),
    "merge: log behind a link": Case(MERGE, link("_delta_log"), 3, "which is a link", needs_spark=True),
    "merge: NOT NULL": Case(
        (*MERGE[:-4], "--when", "MATCHED THEN UPDATE SET v = NULL"), required, 3, "NOT NULL", needs_spark=True
    ),
    "Lance: purge": Case(PURGE, nothing, 0, made=LanceBackend),
    "Lance: purge behind a link": Case(PURGE, link("data"), 3, "which is a link", LanceBackend),
    "Lance: purge, vectors cut off": Case(PURGE, cut_vectors, 5, "_deletions", LanceBackend),
    "Lance: vacuum behind a link": Case(VACUUM, link("_deletions"), 3, "which is a link", LanceBackend),
    "Lance: delete": Case(DELETE, nothing, 0, made=LanceBackend, needs_spark=True),
    "Lance: delete behind a link": Case(DELETE, link("_versions"), 3, "which is a link", LanceBackend, True),
    "Paimon: purge": Case(PURGE, nothing, 0, made=PaimonBackend),
    "Paimon: purge, snapshots behind a link": Case(PURGE, link("snapshot"), 3, "which is a link", PaimonBackend),
    "Paimon: purge, manifests behind a link": Case(PURGE, link("manifest"), 3, "which is a link", PaimonBackend),
    "Paimon: purge, codec": Case(PURGE, nothing, 3, "lzo", option(file__compression="lzo")),
    "Paimon: purge, no file": Case(PURGE, missing_file, 5, "does not exist", PaimonBackend),
    "Paimon: vacuum too much": Case(
        (*VACUUM, "--max-deleted-share", "0.01"), purged, 3, "max_deleted_share", PaimonBackend
    ),
    "Paimon: delete": Case(DELETE, nothing, 0, made=PaimonBackend, needs_spark=True),
    "Paimon: delete, manifests behind a link": Case(
        DELETE, link("manifest"), 3, "which is a link", PaimonBackend, needs_spark=True
    ),
    "Paimon: delete, size of index files": Case(
        DELETE, nothing, 3, "target-size", option(**{"deletion-vector__index-file__target-size": "nonsense"}), True
    ),
}


def run(capsys: pytest.CaptureFixture[str], argv: Sequence[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def reason(answer: dict[str, Any]) -> str:
    """A path of a file that does not exist yet is not part of the reason."""
    text = str(answer.get("message") or answer.get("refused") or "")
    return re.sub(r"\S+ leads through", "... leads through", text)


def promised(case: Case, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(case.made(str(path)), path)
    case.spoil(scene)
    verb, *options = [word.format(source=scene.beside / "source.parquet", beside=scene.beside) for word in case.argv]
    argv = [verb, str(path), *options]
    before = scene.files
    code, dry = run(capsys, [*argv, "--dry-run"])
    assert scene.files == before
    real_code, real = run(capsys, argv)
    assert (code, real_code) == (case.code, case.code), (dry, real)
    assert reason(dry) == reason(real)
    assert case.says in reason(real)
    if case.code:
        assert scene.files == before
    for name in ("rows_deleted", "rows_updated", "rows_inserted", "dvs_added", "dvs_removed", "files_added"):
        assert dry.get(name) == real.get(name), name


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.needs_spark])
def test_maintenance(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promised(CASES[name], tmp_path / "t", capsys)


OF_EACH_VERB = {"delete", "delete: append-only", "update: a rule", "Lance: delete", "Paimon: delete"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_EACH_VERB else pytest.mark.deep)
        for name, case in CASES.items()
        if case.needs_spark
    ],
)
def test_row_changes(spark: SparkSession, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promised(CASES[name], tmp_path / "t", capsys)
