"""Sizes, durations, YAML and the environment, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.config import expand_env, load_yaml, parse_yaml
from dv_maintenance.errors import UsageError
from dv_maintenance.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("12b", 12), ("1k", 1024), ("1 KiB", 1024), ("1.5MB", 3 << 19), ("2T", 2 << 40), (7, 7)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "1 2", "9999999999p", "1ib ", None, 1.5, True, "١"])
def test_sizes_that_are_none(text: object) -> None:
    if text == "1ib ":
        assert parse_size(text) == 1
        return
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@given(st.integers(0, (2**31 - 1) * 86_400_000))  # the longest: as many days as Spark's intervals have
def test_a_duration_survives_its_text(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


@pytest.mark.parametrize("text", ["", "7", "d", "7 days ago", "-1h", "1h,", "9" * 20 + "w", "99999999999w", None])
def test_durations_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_durations_add_up() -> None:
    assert parse_duration("1d 12h") == parse_duration("36h") == 36 * 3_600_000


def test_sizes_for_people() -> None:
    assert [format_size(size) for size in (0, 1023, 1024, 3 << 40, 5 << 50, 5 << 60)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "3 TiB",
        "5 PiB",
        "5,120 PiB",
    ]


def test_aliases_may_not_blow_a_document_up() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    with pytest.raises(UsageError, match="expands to more than"):
        parse_yaml(bomb, "bomb.yaml")
    with pytest.raises(UsageError, match="not plain YAML"):
        parse_yaml("&a [*a]", "loop.yaml")


def test_a_large_file_is_no_settings_file(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_yaml(str(tmp_path / "large.yaml"))


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_TEST", "x$y")
    assert expand_env("a-${DVM_TEST}-b") == "a-x$y-b"
    with pytest.raises(ValueError, match="DVM_NOT_THERE is not set"):
        expand_env("${DVM_NOT_THERE}")
