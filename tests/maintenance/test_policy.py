"""Policies: what people may write, and what they hear when it makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.policy import Policy


def test_a_policy_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        """
        max_deleted_ratio: 0.2
        target_file_size: 512MiB
        compression: ZSTD
        max_bytes: 1073741824
        retention: 168h
        partitions: [{day: 2026-01-01, shop: 3}, day=2026-01-02/shop=a%2Fb, {shop: null}]
        """
    )
    policy = Policy.load(str(tmp_path / "policy.yaml"))
    assert policy.target_file_size == 512 << 20
    assert policy.compression == "zstd"
    assert policy.max_bytes == 1 << 30
    assert policy.retention == 7 * 24 * 3600 * 1000
    assert policy.partitions == (
        {"day": "2026-01-01", "shop": "3"},
        {"day": "2026-01-02", "shop": "a/b"},
        {"shop": None},
    )
    assert Policy.model_validate(policy.model_dump(mode="json")) == policy


def test_an_empty_file_is_the_default_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("# nothing\n")
    assert Policy.load(str(tmp_path / "policy.yaml")) == Policy()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_deleted_ratio: 2", r"max_deleted_ratio: .* less than or equal to 1 \(.*policy\.yaml line 1\)"),
        ("\nmax_tsks: 1", r"max_tsks: unknown key: did you mean max_tasks\? .*line 2"),
        ("max_tasks: 0", "max_tasks: .*greater than 0"),
        ("max_files: true", "max_files"),
        ("max_bytes: 3 bananas", "max_bytes: not a size: '3 bananas'"),
        ("retention: soon", "retention: not a duration: 'soon'"),
        ("retention: -1h", "retention"),
        ("compression: zst", r"compression: not a codec: 'zst'; did you mean zstd\? .*line 1"),
        ("compression: lz4", "compression: not a codec: 'lz4'; use one of none, snappy, gzip, zstd"),
        ("partitions:\n- day", "partitions.0: not a partition: 'day'.*line 2"),
        ("partitions: [{}]", "partitions.0"),
        ("max_deleted_ratio: .nan", "max_deleted_ratio"),
        ("max_tasks: 1\nmax_tasks: 2", "line 2: key 'max_tasks' is given twice"),
        ("- 1", "must hold keys and values"),
        ("a: [", "is not plain YAML"),
        ("!!python/object/apply:os.getcwd []", "is not plain YAML"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        Policy.load(str(tmp_path / "policy.yaml"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        Policy.load(str(tmp_path / "none.yaml"))


def test_overrides_win() -> None:
    policy = Policy(max_tasks=3).with_overrides(["max_deleted_ratio=0", "max_bytes=2g", "partitions=[day=1]"])
    assert (policy.max_tasks, policy.max_deleted_ratio, policy.max_bytes) == (3, 0.0, 2 << 30)
    assert policy.partitions == ({"day": "1"},)


@pytest.mark.parametrize("assignment", ["max_tasks", "=1", "tasks=1", "max_tasks=[", "max_tasks=some"])
def test_overrides_that_make_no_sense(assignment: str) -> None:
    with pytest.raises(UsageError):
        Policy().with_overrides([assignment])


def test_policies_do_not_change() -> None:
    policy: Any = Policy()
    with pytest.raises(ValueError, match="frozen"):
        policy.max_tasks = 1
