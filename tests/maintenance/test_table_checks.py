"""Findings about a table: each against its limits, and what is not known said to be so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from dv_maintenance.errors import StorageUnavailableError, UsageError
from dv_maintenance.maintenance.checks import CHECKS, Finding, check_table
from dv_maintenance.maintenance.planning.limits import DurationLimits, RatioLimits, RetentionLimits
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import OldestDv
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.paimon_builder import PaimonBuilder
from dv_maintenance.units import minute_of

DAY = 86_400_000


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    """A table of two files with 1000 rows each."""
    made = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    made.append(pa.table({"id": range(2000)}), files=2)
    return made


def delete_bit(builder: DeltaBuilder, bit: int) -> None:
    builder.delete(lambda rows: pc.not_equal(pc.bit_wise_and(rows["id"], bit), 0))


def find(path: Any, check: str, *, days: float = 0, **policy: Any) -> Finding:
    """The finding of one check, so many days after the newest version."""
    table = open_table(str(path))
    now = table.snapshot().timestamp + int(days * DAY)
    (found,) = check_table(lambda: table, Policy.from_mapping(policy), checks=[check], now=now)
    return found


@pytest.fixture
def path(builder: DeltaBuilder, tmp_path: Path) -> Path:
    return tmp_path / "t"


def test_a_table_in_order(path: Path) -> None:
    found = check_table(lambda: open_table(str(path)))
    assert [each.check for each in found] == list(CHECKS)
    assert {each.check for each in found if each.severity} == {"manifest_lag"}


def test_deleted_ratio(path: Path, builder: DeltaBuilder) -> None:
    delete_bit(builder, 4)
    assert find(path, "deleted_ratio").severity == "error"
    limits = {"deleted_ratio": {"warn": 0.4, "error": 0.6}}
    found = find(path, "deleted_ratio", checks=limits)
    assert (found.severity, found.numbers["deleted_rows"]) == ("warn", 1000)
    assert find(path, "deleted_ratio", checks={"deleted_ratio": {}}).severity is None


def test_the_oldest_dv_counts_from_its_commit(path: Path, builder: DeltaBuilder) -> None:
    assert find(path, "oldest_dv", days=99).reason == "there are no deletion vectors"
    delete_bit(builder, 1)
    assert find(path, "oldest_dv", days=7).severity is None
    found = find(path, "oldest_dv", days=8)
    deleted = minute_of(open_table(str(path)).snapshot().timestamp)
    crossed = f"rows deleted on {deleted} are still in live files; the limit is 7d (checks.oldest_dv.warn)"
    assert (found.severity, found.reason) == ("warn", crossed)
    assert found.numbers == {"age_seconds": 8 * 86400}
    late = find(path, "oldest_dv", days=31)
    assert (late.severity, late.until) == ("error", None)
    assert late.reason.endswith("; the limit is 30d (checks.oldest_dv.error)")
    assert found.until is not None
    assert find(path, "oldest_dv", days=7).until == found.until - 23 * DAY, "it fails then without a commit"


def test_the_oldest_dv_counts_from_the_first_one_of_its_file(path: Path, builder: DeltaBuilder) -> None:
    """A delete replaces the DV of a file: the age of rows deleted long ago was that of the newest delete."""
    table, since = open_table(str(path)), []
    for bit in range(1, 6):
        delete_bit(builder, bit)
        since.append(table.snapshot().timestamp)
    assert table.oldest_dv(table.snapshot()) == OldestDv(since[0], exact=True)
    assert table.oldest_dv(table.snapshot(), limit=2) == OldestDv(since[3], exact=False)


def test_a_dv_whose_commit_is_gone_is_at_least_so_old(path: Path, builder: DeltaBuilder) -> None:
    delete_bit(builder, 1)
    for version in range(3, 12):
        builder.append(pa.table({"id": [version]}))
    table = open_table(str(path))
    snapshot = table.snapshot()
    exact = table.oldest_dv(snapshot)
    assert exact is not None
    assert exact.exact
    assert exact.timestamp == table.history()[-3].timestamp
    short = table.oldest_dv(snapshot, limit=4)
    assert short is not None
    assert (short.exact, short.timestamp) == (False, table.history()[3].timestamp)
    # And of an older version, what was committed by then.
    first = table.oldest_dv(table.snapshot(1))
    assert first is None


def test_unknown_ages_are_warnings_that_say_so(path: Path, builder: DeltaBuilder) -> None:
    delete_bit(builder, 1)
    table = open_table(str(path))

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(table, name)

        def oldest_dv(self, snapshot: Any) -> Any:
            return table.oldest_dv(snapshot, limit=0)

    forgetful: Any = Forgetful()
    (found,) = check_table(lambda: forgetful, checks=["oldest_dv"], now=table.snapshot().timestamp + DAY)
    assert found.severity == "warn"
    deleted = minute_of(table.snapshot().timestamp)
    assert found.reason.startswith(f"rows deleted by {deleted} are still in live files; ")
    off = Policy.from_mapping({"checks": {"oldest_dv": {}}})
    (found,) = check_table(lambda: forgetful, off, checks=["oldest_dv"])
    assert found.severity is None


def test_small_files(path: Path, builder: DeltaBuilder) -> None:
    assert find(path, "small_files").numbers["files_to_spare"] == 1
    builder.append(pa.table({"id": range(10)}), files=2)
    found = find(path, "small_files")
    assert (found.severity, found.numbers["files_to_spare"], found.numbers["share_to_spare"]) == ("warn", 3, 0.75)
    # Where a file holds no more than what there is, nothing is to be merged.
    assert find(path, "small_files", target_file_size=1).severity is None


@pytest.mark.parametrize(
    ("retention", "severity"),
    [
        ("interval 1 week", None),
        ("interval 24 hours", None),
        ("interval 23 hours", "warn"),
        ("interval 1 minute", "error"),
    ],
)
def test_retention(tmp_path: Path, retention: str, severity: str | None) -> None:
    DeltaBuilder(str(tmp_path / "t")).create(
        pa.schema([("id", pa.int64())]), properties={"delta.deletedFileRetentionDuration": retention}
    )
    assert find(tmp_path / "t", "retention").severity == severity


def test_a_retention_that_vacuum_refuses(path: Path) -> None:
    found = find(path, "retention", retention="2d")
    assert found.severity == "warn"
    assert "a retention of 2d is shorter than the table's own 7d" in found.reason
    assert "unknown" not in found.reason, "it is known"


@pytest.mark.parametrize(
    ("own", "policy", "severity"),
    [
        ("1 h", {}, None),
        ("30 min", {}, "error"),
        ("2 d", {}, None),
        ("1 h", {"checks": {"retention": {"warn": "1d"}}}, "warn"),
        ("1 h", {"checks": {"retention": {"warn": "1d", "error": "2h"}}}, "error"),
    ],
)
def test_the_retention_of_a_format_that_keeps_little(
    tmp_path: Path, own: str, policy: dict[str, Any], severity: str | None
) -> None:
    """Every Paimon table with defaults was yellow for ever. Limits that the policy names hold for every table."""
    pytest.importorskip("fastavro")
    PaimonBuilder(str(tmp_path / "p")).create({"id": "BIGINT"}, options={"snapshot.time-retained": own})
    found = find(tmp_path / "p", "retention", **policy)
    assert found.severity == severity
    assert ("Paimon's default" in found.reason) == (own == "1 h")


def test_manifests(path: Path, builder: DeltaBuilder) -> None:
    assert find(path, "manifest_lag").severity == "error"
    assert find(path, "manifest_lag", checks={"manifest_lag": {}}).severity is None
    table = open_table(str(path))
    table.write_manifests(table.snapshot())
    found = find(path, "manifest_lag")
    assert (found.severity, found.numbers) == (None, {"lag_seconds": 0})


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    def lost() -> Table:
        return open_table(str(tmp_path / "none"))

    def away() -> Table:
        raise StorageUnavailableError("the network is down")

    (found,) = check_table(lost)
    assert (found.check, found.severity, found.numbers["error"]) == ("readable", "error", "TableNotFoundError")
    (found,) = check_table(away)
    assert (found.check, found.severity) == ("readable", "warn")
    others = check_table(away, checks=["oldest_dv", "retention"])
    assert [(each.check, each.severity) for each in others] == [("oldest_dv", "warn"), ("retention", "warn")]
    assert "the network is down" in others[0].reason


def test_a_damaged_old_commit_spoils_only_what_needs_it(path: Path, builder: DeltaBuilder) -> None:
    delete_bit(builder, 1)
    builder.checkpoint()
    (path / "_delta_log" / f"{2:020}.json").write_text("{")
    found = {each.check: each for each in check_table(lambda: open_table(str(path)))}
    assert found["readable"].severity is None
    assert found["deleted_ratio"].severity == "error"
    assert (found["oldest_dv"].severity, found["oldest_dv"].numbers["error"]) == ("warn", "DamagedTableError")


def test_limits() -> None:
    ratio, age = RatioLimits(warn=0.1, error=0.3), DurationLimits.model_validate({"warn": "1d"})
    assert [ratio.crossed(value) for value in (0.1, 0.11, 0.3, 0.31)] == [None, "warn", "warn", "error"]
    assert [age.crossed(value) for value in (DAY, DAY + 1)] == [None, "warn"]
    retention = RetentionLimits.model_validate({"warn": "1d", "error": "1h"})
    assert [retention.crossed(value) for value in (DAY, DAY - 1, 3_600_000, 0)] == [None, "warn", "warn", "error"]
    with pytest.raises(ValidationError, match="warn must come before error"):
        RatioLimits(warn=0.3, error=0.1)
    with pytest.raises(ValidationError, match="warn must come before error"):
        RetentionLimits.model_validate({"warn": "1h", "error": "1d"})


def test_limits_in_a_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("checks:\n  oldest_dv: {warn: 3d}\n")
    policy = Policy.load(str(tmp_path / "policy.yaml"))
    assert policy.checks.oldest_dv.warn == 3 * DAY
    assert policy.checks.deleted_ratio == Policy().checks.deleted_ratio
    assert Policy.model_validate(policy.model_dump(mode="json")) == policy
    (tmp_path / "policy.yaml").write_text("checks:\n  oldest_dv: {warn: soon}\n")
    with pytest.raises(UsageError, match=r"checks\.oldest_dv\.warn: not a duration.*line 2"):
        Policy.load(str(tmp_path / "policy.yaml"))
