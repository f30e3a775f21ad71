"""A NOT NULL column that a file lacks, or in which it has nulls: one answer from every verb, for every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance.cli import main
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

BAD, GOOD = "bad", "good"
LACKS, NULLS = "lacks", "nulls"


def delta(place: Path, kind: str, gone: Collection[int]) -> TableBackend:
    """As deltalake leaves a table to which it adds a NOT NULL column, or as its schema is edited without a check."""
    backend = filled(DeltaBackend(str(place)), kind, gone)
    log = sorted((place / "_delta_log").glob("*.json"))
    action = next(found for line in log[0].read_text().splitlines() if "metaData" in (found := json.loads(line)))
    schema = json.loads(action["metaData"]["schemaString"])
    if kind == NULLS:
        schema["fields"][2]["nullable"] = False
    else:
        schema["fields"].append({"name": "n", "type": "integer", "nullable": False, "metadata": {}})
    action["metaData"]["schemaString"] = json.dumps(schema)
    (place / "_delta_log" / f"{len(log):020d}.json").write_text(json.dumps(action))
    return backend


def paimon(place: Path, kind: str, gone: Collection[int]) -> TableBackend:
    backend = filled(PaimonBackend(str(place)), kind, gone)
    schema = json.loads((place / "schema" / "schema-0").read_text())
    schema["id"] = 1
    if kind == NULLS:
        schema["fields"][2]["type"] = "STRING NOT NULL"
    else:
        schema["fields"].append({"id": 3, "name": "n", "type": "INT NOT NULL"})
        schema["highestFieldId"] = 3
    (place / "schema" / "schema-1").write_text(json.dumps(schema))
    return backend


def lance(place: Path, kind: str, gone: Collection[int]) -> TableBackend:
    """Its own methods check; a commit of another writer's operation does not."""
    import lance as library

    assert kind == LACKS
    backend = filled(LanceBackend(str(place)), kind, gone)
    dataset = library.dataset(str(place))
    schema = pa.schema([*dataset.schema, pa.field("n", pa.int32(), nullable=False)])
    merged = library.LanceOperation.Merge([each.metadata for each in dataset.get_fragments()], schema)
    library.LanceDataset.commit(dataset, merged, read_version=dataset.version)
    return backend


def filled(backend: TableBackend, kind: str, gone: Collection[int]) -> TableBackend:
    backend.create()
    text: Any = "x" if kind == LACKS else None
    backend.append(BAD, [(at, BAD, "x") for at in range(3)] + [(at, BAD, text) for at in range(3, 10)])
    backend.append(GOOD, [(at, GOOD, "x") for at in range(10, 20)])
    backend.delete(gone)
    return backend


CASES: dict[str, tuple[Callable[[Path, str, Collection[int]], TableBackend], str]] = {
    "delta lacks": (delta, LACKS),
    "delta nulls": (delta, NULLS),
    "lance lacks": (lance, LACKS),
    "paimon lacks": (paimon, LACKS),
    "paimon nulls": (paimon, NULLS),
}


class Place:
    def __init__(self, path: Path, name: str, gone: Collection[int] = (1, 11)) -> None:
        self.path, (make, self.kind) = path, CASES[name]
        self.backend = make(path, self.kind, gone)
        self.format = name.split(maxsplit=1)[0]
        self.column = "v" if self.kind == NULLS else "n"
        table: Any = self.backend.open()
        rows = table.needed_files(table.snapshot()).to_pylist()
        data = sorted(row["path"] for row in rows if row["kind"] == "data")
        self.files = data if self.kind == LACKS else [path for path in data if f"p={BAD}" in path]

    def run(self, capsys: pytest.CaptureFixture[str], verb: str, *argv: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([verb, str(self.path), *argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    @property
    def command(self) -> str:
        """What lets the column be null."""
        if self.format == "lance":
            return f"alter_columns({{'path': '{self.column}', 'nullable': True}})"
        return f"ALTER COLUMN {self.column} DROP NOT NULL"

    def named(self, message: str) -> bool:
        """Whether a message names the column and a file that has no value."""
        known = any(path in message for path in self.files)
        return known and f"column {self.column} is NOT NULL, but " in message


@pytest.fixture(params=CASES)
def place(request: pytest.FixtureRequest, tmp_path: Path, pylance: ModuleType) -> Place:
    return Place(tmp_path / "t", request.param)


def test_every_verb_that_returns_or_moves_the_rows(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in place.path.rglob("*") if file.is_file()}
    local = ("--engine", "local")
    verbs = [
        *[("read", "-o", str(place.path.parent / f"rows.{kind}")) for kind in ("parquet", "arrow", "csv", "jsonl")],
        ("purge", *local),
        ("purge", *local, "--dry-run"),
        ("apply", *local, "--set", "max_deleted_ratio=0", "--dry-run"),
    ]
    if place.format == "delta":
        verbs += [("zorder", *local, "--columns", "id"), ("zorder", *local, "--columns", "id", "--dry-run")]
        verbs += [("downgrade", *local), ("downgrade", *local, "--dry-run")]
    for verb in verbs:
        code, answer = place.run(capsys, *verb)
        if place.format == "lance" and "purge" in verb:
            continue  # its own library moves the rows
        assert (code, place.named(answer["message"])) == (5, True), (verb, answer)
        assert place.command in answer["next_step"] or verb[0] == "downgrade"
    assert place.format == "lance" or {file: file.read_bytes() for file in before} == before
    assert not list(place.path.parent.glob("rows.*"))


def test_other_columns_can_be_read(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = place.run(capsys, "read", "--columns", "id,p")
    assert (code, answer["rows"]) == (0, 18)


def test_fsck(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.run(capsys, "fsck")[0] == 0
    code, answer = place.run(capsys, "fsck", "--deep")
    assert code == 5
    assert sorted(each["path"] for each in answer["damage"]) == place.files
    for each in answer["damage"]:
        assert (each["fault"], each["kind"], each["files"]) == ("nulls", "data", 1)
        assert f"column {place.column} is NOT NULL" in each["reason"]
    (remedy,) = answer["remedies"]
    assert (remedy["loses"], place.command in remedy["command"]) == ("Nothing.", True)


@pytest.mark.parametrize("name", ["delta nulls", "delta lacks", "paimon nulls", "paimon lacks"])
def test_deleted_rows_need_no_value(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = range(3, 10) if name.endswith(NULLS) else range(20)
    place = Place(tmp_path / "t", name, gone)
    assert place.run(capsys, "fsck", "--deep")[0] == 0
    assert place.run(capsys, "purge", "--engine", "local", "--dry-run")[0] == 0
    assert place.run(capsys, "purge", "--engine", "local")[0] == 0
    code, answer = place.run(capsys, "read")
    assert (code, answer["rows"]) == (0, 20 - len(gone))


@pytest.mark.parametrize("place", ["delta nulls", "delta lacks"], indirect=True)
def test_queries_of_others_that_succeeded_still_do(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """They skip the file. If its rows moved into a file that they read, they would fail."""
    import deltalake

    def answers(query: str) -> list[Any]:
        table = deltalake.DeltaTable(str(place.path))
        found = deltalake.QueryBuilder().register("t", table).execute(query).read_all()
        return pa.table(found).to_pylist()

    with pytest.raises(Exception, match=r"[Nn]on-nullable"):
        answers("SELECT * FROM t")
    if place.kind == NULLS:
        assert len(answers("SELECT * FROM t WHERE id = 15")) == 1
    place.run(capsys, "apply", "--engine", "local", "--set", "max_deleted_ratio=0")
    place.run(capsys, "zorder", "--engine", "local", "--columns", "id")
    if place.kind == NULLS:
        assert len(answers("SELECT * FROM t WHERE id = 15")) == 1


@pytest.mark.parametrize("place", ["delta lacks"], indirect=True)
def test_changes_are_those_of_their_versions(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """When these rows were written, there was no such column."""
    out = place.path.parent / "changes.parquet"
    code, answer = place.run(capsys, "changes", "--from", "0", "-o", str(out))
    assert (code, answer["rows"]) == (0, 22)
    assert pa.parquet.read_table(out)[place.column].null_count > 0


@pytest.mark.parametrize(
    "place",
    [
        "delta lacks",
        *(pytest.param(name, marks=pytest.mark.deep) for name in ("delta nulls", "paimon nulls", "lance lacks")),
    ],
    indirect=True,
)
def test_row_changes(place: Place, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    column = place.column
    verbs = [("delete", "--where", f"{column} IS NULL"), ("delete", "--where", f"id = 4 AND {column} IS NULL")]
    verbs += [("read", "--where", f"{column} IS NULL")]
    if place.format == "delta":
        verbs += [("update", "--set", "id = id + 100", "--where", "id = 5")]
        verbs += [(*verb, "--dry-run") for verb in verbs if verb[0] != "read"]
    for verb in verbs:
        code, answer = place.run(capsys, *verb)
        assert (code, place.named(answer["message"])) == (5, True), (verb, answer)
    # What does not read the column is not concerned.
    code, answer = place.run(capsys, "delete", "--where", "id = 4")
    assert (code, answer["rows_deleted"]) == (0, 1)
