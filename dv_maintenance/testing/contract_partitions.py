"""What maintenance promises for the partitions of a table, also where their specification has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.execution.apply import apply, maintain, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables.predicate import Compare, IsNull, Not, Predicate, StartsWith
from dv_maintenance.testing.backends import Row
from dv_maintenance.testing.history import TableHistory, require


class PartitionContract:
    """Part of ``TableContract``."""

    def test_no_file_with_a_match_is_left_out(self, table: TableHistory) -> None:
        """A condition rules out files by their partitions, and by what else the format knows."""
        if "specifications" in table.backend.supports:
            self.evolved(table)
        table.append(None, 5)
        opened: Any = table.table
        snapshot = opened.snapshot()
        files = table.backend.rows_of_files(snapshot)
        conditions: list[tuple[Predicate, Callable[[Row], bool]]] = [
            (Compare(("p",), "=", "a"), lambda row: row[1] == "a"),
            (Not(Compare(("p",), "=", "a")), lambda row: row[1] not in ("a", None)),
            (IsNull(("p",)), lambda row: row[1] is None),
            (Compare(("id",), ">=", 25), lambda row: row[0] >= 25),
            (StartsWith(("v",), "value 1"), lambda row: row[2].startswith("value 1")),
            (Compare(("v",), "<", "val"), lambda row: row[2] < "val"),
            (Compare(("v",), ">", "value 2"), lambda row: row[2] > "value 2"),
        ]
        for condition, holds in conditions:
            chosen = opened.may_match(snapshot, condition).to_pylist()
            assert len(chosen) == len(files)
            left_out = [rows for rows, maybe in zip(files, chosen, strict=True) if not maybe]
            assert not any(holds(row) for rows in left_out for row in rows), condition
            if "partitions" in table.backend.supports and condition == conditions[0][0]:
                assert left_out, "partitions tell some of them"

    @staticmethod
    def evolved(table: TableHistory) -> None:
        """Two files of a under the second specification; one of a and one of b under the third, which lacks p. Each
        file of the table loses a row.
        """
        table.backend.evolve()
        table.sync()
        table.append("a", 10)
        table.append("a", 10)
        table.backend.evolve()
        table.sync()
        table.append("a", 10)
        table.append("b", 10)
        table.delete([3, 13, 23, 33, 43, 53, 63])

    def test_specifications_are_never_mixed(self, table: TableHistory) -> None:
        require(table.backend, "specifications")
        self.evolved(table)
        first, second, third = table.table.snapshot().specs
        report = maintain(table.table, table.backend.engine())
        assert report.verified, report.problems
        assert {step.partition: (step.files_removed, step.files_added) for step in report.steps} == {
            first.partition(["a"]): (2, 1),
            first.partition(["b"]): (1, 1),
            second.partition(["val", "a"]): (2, 1),
            third.partition([None, "val"]): (2, 1),
        }
        assert table.read() == table.expected()

    def test_a_filter_finds_the_partitions_that_have_its_field(self, table: TableHistory) -> None:
        require(table.backend, "specifications")
        self.evolved(table)
        first, second, third = table.table.snapshot().specs
        wanted = {
            "p=b": [first.partition(["b"])],
            "p=a": [first.partition(["a"]), second.partition(["val", "a"])],
            "v_trunc=val": [second.partition(["val", "a"]), third.partition([None, "val"])],
            "spec_id=2": [third.partition([None, "val"])],
            "spec_id=0/p=a": [first.partition(["a"])],
        }
        for chosen, names in wanted.items():
            policy = Policy.from_mapping({"partitions": [chosen]})
            plan = build_plan(table.table.snapshot(), policy, purge=True)
            assert sorted({step.partition for step in plan.steps}) == sorted(names), chosen
        purge(table.table, table.backend.engine(), ["p=a"])
        assert table.live_dvs() == 3
        assert table.read() == table.expected()
        with pytest.raises(UsageError, match="'v' is not a partition column") as refusal:
            purge(table.table, table.backend.engine(), ["v=val"])
        assert "v_trunc: truncate[3](v)" in str(refusal.value.next_step)

    def test_lost_steps_are_planned_again_in_their_own_specification(self, table: TableHistory) -> None:
        """Partitions of other specifications have the same values, and more."""
        require(table.backend, "specifications")
        self.evolved(table)
        policy = Policy.from_mapping({"partitions": ["spec_id=0/p=a"]})
        plan = build_plan(table.table.snapshot(), policy, purge=True)
        table.delete([7, 17])
        report = apply(table.table, table.backend.engine(), plan)
        assert {step.partition for step in report.steps} == {"p=a"}
        assert table.read() == table.expected()
