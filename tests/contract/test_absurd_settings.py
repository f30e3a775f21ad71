"""Settings of tables, policies and options may hold any text: each ends in a report, or in an error that says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from effort import sampled

from dv_maintenance.cli import main
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

# The first is longer than 64-bit milliseconds, the second as long as they get, the third the longest of Spark.
INTERVALS: Final = (
    "interval 999999999999999 weeks",
    "interval 15000000000 weeks",
    "interval 2147483647 days",
    "interval -1 days",
    "",
)
DURATIONS: Final = ("999999999999999999 d", "99999999999 d", "2147483647 d", "-1 h", "")
AGES: Final = ("999999999999999w", "9999999999y", "2147483647d", "-1d", "")
NUMBERS: Final = ("9" * 5000, "9" * 19, "9223372036854775807", "-1", "", "1e9")
SIZES: Final = ("9" * 400, "9223372036854775807", "8191p", "-1", "")

PROPERTIES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "delta": {
        "delta.deletedFileRetentionDuration": INTERVALS,
        "delta.logRetentionDuration": INTERVALS,
        "delta.dropFeatureTruncateHistory.retentionDuration": INTERVALS,
        "delta.checkpointInterval": NUMBERS,
        "delta.requireCheckpointProtectionBeforeVersion": NUMBERS,
        "delta.inCommitTimestampEnablementVersion": NUMBERS,
        "delta.dataSkippingNumIndexedCols": NUMBERS,
        "delta.dataSkippingStringPrefixLength": NUMBERS,
        "delta.columnMapping.maxColumnId": NUMBERS,
        "delta.targetFileSize": SIZES,
    },
    "paimon": {
        "snapshot.time-retained": DURATIONS,
        "changelog.time-retained": DURATIONS,
        "snapshot.num-retained.min": NUMBERS,
        "snapshot.num-retained.max": NUMBERS,
        "changelog.num-retained.max": NUMBERS,
        "metadata.stats-keep-first-n-columns": NUMBERS,
        "target-file-size": SIZES,
        "deletion-vector.index-file.target-size": SIZES,
    },
    "lance": {
        "lance.auto_cleanup.older_than": AGES,
        "lance.auto_cleanup.retain_versions": NUMBERS,
        "lance.compaction.target_rows_per_fragment": NUMBERS,
    },
}
VERBS: Final = (
    ("health",),
    ("plan",),
    ("vacuum", "--dry-run"),
    ("vacuum", "--lite", "--dry-run"),
    ("simulate",),
    ("downgrade", "--truncate-history", "--dry-run"),
    ("restore", "--version", "2"),
    ("purge", "--engine", "local"),
    ("checkpoint",),
    ("checkpoint", "--clean-log"),
    ("vacuum", "--quarantine"),
)


def backend_of(kind: str, place: str, settings: Mapping[str, str]) -> TableBackend:
    made: dict[str, Callable[[], TableBackend]] = {
        "delta": lambda: DeltaBackend(place),
        "paimon": lambda: PaimonBackend(place, properties=settings),
        "lance": lambda: LanceBackend(place),
    }
    backend = made[kind]()
    backend.create()
    for at in range(2):
        backend.append("a", [(2 * at, "a", "x"), (2 * at + 1, "a", "y")])
    backend.delete([1])
    if isinstance(backend, DeltaBackend) and settings:
        metadata = load_snapshot(Storage(place)).metadata
        changed = replace(metadata, configuration={**metadata.configuration, **settings})
        DeltaBuilder(place).commit([{"metaData": changed.to_json()}])
    if kind == "lance" and settings:
        import lance

        lance.dataset(place).update_config(dict(settings))
    return backend


def says_what_is_wrong(*argv: str, capsys: pytest.CaptureFixture[str]) -> int:
    code = main(list(argv))
    said = capsys.readouterr()
    assert "DVM_DEBUG=1" not in said.err, f"{argv}: {said.err}"
    assert not code or said.err, argv
    return code


CASES: Final = [(kind, name, value) for kind, each in PROPERTIES.items() for name, of in each.items() for value in of]


@pytest.mark.parametrize(("kind", "name", "value"), sampled(CASES, 10), ids=lambda each: each[:40])
def test_a_property(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, value: str) -> None:
    place = str(tmp_path / "t")
    backend_of(kind, place, {name: value})
    for verb, *options in VERBS:
        says_what_is_wrong(verb, place, *options, capsys=capsys)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("delta", "delta.deletedFileRetentionDuration"),
        ("paimon", "snapshot.time-retained"),
        ("lance", "lance.auto_cleanup.older_than"),
    ],
)
def test_a_retention_too_long_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    """It was an OverflowError. As long as Spark allows, it keeps everything."""
    values = PROPERTIES[kind][name]
    for at, value in enumerate(values[:3]):
        place = str(tmp_path / str(at))
        backend_of(kind, place, {name: value})
        wanted = 0 if at == 2 else 3
        assert main(["vacuum", place]) == wanted, value
        assert wanted == 0 or "too long" in capsys.readouterr().err


LONG: Final = ("999999999999999w", "2147483647d")
SETTINGS: Final = {
    **dict.fromkeys(("retention", "quarantine_retention", "vacuum_every", "erase_within"), LONG),
    **dict.fromkeys(("target_file_size", "min_file_size", "max_bytes", "vacuum_min_bytes"), (*SIZES, "8191p")),
    **dict.fromkeys(("min_input_files", "max_files", "max_tasks"), ("9" * 400, "9" * 19, "-1")),
    **dict.fromkeys(("reads_per_day", "max_deleted_ratio"), ("9" * 400, "1e308", "nan", "inf")),
}
OPTIONS: Final = (
    *(f"vacuum --{name} {value}" for name in ("retention", "quarantine-retention") for value in LONG),
    *(f"simulate --since {value}" for value in LONG),
    "restore --timestamp 9999-12-31T23:59:59-12:00",
    "restore --timestamp 0001-01-01T00:00:00+14:00",
    "undelete --since 99999-01-01T00:00:00Z",
    *(f"{option} {'9' * 19}" for option in ("read --limit", "health --version", "changes --from")),
    f"zorder --columns id --engine local --dry-run --target-file-size {'9' * 400}",
)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    return backend_of("delta", str(tmp_path_factory.mktemp("absurd") / "orders"), {}).place  # type: ignore[attr-defined]


def policies() -> Iterator[tuple[str, str]]:
    return ((name, value) for name, values in SETTINGS.items() for value in values)


@pytest.mark.parametrize(("name", "value"), sampled(policies(), 5), ids=lambda each: each[:40])
def test_a_policy(tmp_path: Path, orders: str, capsys: pytest.CaptureFixture[str], name: str, value: str) -> None:
    for verb, place in (("plan", orders), ("health", orders), ("simulate", orders), ("scan", str(Path(orders).parent))):
        says_what_is_wrong(verb, place, "--set", f"{name}={value}", capsys=capsys)
    listed = tmp_path / "tables.yaml"
    tables = [{"name": "orders", "path": orders, "jobs": ["optimize", "vacuum"]}]
    listed.write_text(json.dumps({"tables": tables, "defaults": {"policy": {name: value}}}))
    for words in (("check",), ("watch", "--once"), ("scan",)):
        says_what_is_wrong(words[0], str(listed), *words[1:], capsys=capsys)


@pytest.mark.parametrize("words", sampled(OPTIONS, 3), ids=lambda each: each[:40])
def test_an_option(orders: str, capsys: pytest.CaptureFixture[str], words: str) -> None:
    verb, *options = words.split()
    says_what_is_wrong(verb, orders, *options, capsys=capsys)
