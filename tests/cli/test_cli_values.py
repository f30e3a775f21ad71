"""Values of options: what separates them, and how a name that has a separator is quoted."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance.cli import main
from dv_maintenance.cli.values import assignment, names, partition_types
from dv_maintenance.testing.delta_builder import DeltaBuilder


def test_names_are_quoted_as_in_spark() -> None:
    assert names("id, name,,") == ["id", "name"]
    assert names("`id,x`,b c, `d``e`") == ["id,x", "b c", "d`e"]
    assert assignment("`a=b` = c = d") == ("a=b", " c = d")
    assert assignment("state='='") == ("state", "'='")
    found = partition_types("`day, local` DATE, amount DECIMAL(10, 2),shop STRING")
    assert found == {"day, local": pa.date32(), "amount": pa.decimal128(10, 2), "shop": pa.string()}
    for parse, text in (
        (names, "`id"),
        (names, "a`b"),
        (assignment, "=1"),
        (assignment, "state"),
        (partition_types, "`a DATE"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


@pytest.mark.parametrize("text", ["a" * 50_000 + "`", "()" * 50_000 + "`", "`a`" * 50_000 + "`"])
def test_a_long_text_is_read_at_once(text: str) -> None:
    """Nested repetitions took exponential time."""
    for parse in (names, partition_types, assignment):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


def test_columns_with_commas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were cut at each comma, whatever was around them."""
    place = str(tmp_path / "t")
    rows = pa.table({"id,x": [1, 2, 3], "p,q": ["u,v", "u,v", "w"], "k": [3, 1, 2]})
    builder = DeltaBuilder(place).create(
        rows.schema, partition_by=["p,q"], properties={"delta.columnMapping.mode": "name"}
    )
    builder.append(rows)
    builder.append(rows)
    assert main(["read", place, "--columns", "`id,x`,k", "--limit", "1"]) == 0
    assert capsys.readouterr().out == '{"id,x":1,"k":3}\n'
    words = ["zorder", place, "--columns", "`id,x`, k", "--engine", "local", "--partition", "p,q=u,v"]
    assert main(words) == 0
    assert "2 files were rewritten as 1" in capsys.readouterr().out, "those of the partition that was named"
    (tmp_path / "plain" / "p,q=1").mkdir(parents=True)
    pa.parquet.write_table(rows.select(["k"]), tmp_path / "plain" / "p,q=1" / "a.parquet")
    assert main(["convert", str(tmp_path / "plain"), "--partition-by", "`p,q` INT", "--dry-run"]) == 3
    assert "a column may not be called 'p,q'" in capsys.readouterr().err, "the folders' name was understood"
