"""How a MERGE runs.

One join finds the matching rows. The first clause whose condition is true decides what happens to a row. One pass over
the result writes the new rows and records the positions of the deleted ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.dml.assignments import assignments
from dv_maintenance.dml.caching import cached
from dv_maintenance.dml.carried import assigned, carried, check_assigned, check_rules, check_untouched, unseen
from dv_maintenance.dml.catalyst import check_condition, check_values, demanded_by, shape
from dv_maintenance.dml.condition import Condition, equal_columns
from dv_maintenance.dml.keys import rows_of_files
from dv_maintenance.dml.merge import MATCHED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, Clause, Merge
from dv_maintenance.dml.names import alike, quoted
from dv_maintenance.dml.new_rows import TARGET_BYTES, held_to, scanned, spark_types
from dv_maintenance.dml.operation import Work, discard, row_changes, session_of
from dv_maintenance.dml.padding import char_length
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import TableRows, live_rows, spark_errors
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.dml.shapes import Shapes, shapes_in
from dv_maintenance.dml.source import Values
from dv_maintenance.dml.spark_types import value_type
from dv_maintenance.dml.write import Written, write_changes
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.tables.predicate import And, Or
from dv_maintenance.tables.rows import row_id_name, unused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowLevelTable, RowRules


def _source(session: SparkSession, merge: Merge, snapshot: Snapshot) -> tuple[DataFrame, DataFrame, int | None]:
    """The source, what is cached of it, and its row count if known."""
    source = merge.source
    if callable(source):
        source = source(session)
    if isinstance(source, tuple):
        schema, options = snapshot.schema, merge.table.storage.options
        return rows_of_files(session, source, lambda names: _kinds(merge, schema, names), options)
    if isinstance(source, str):
        source = session.sql(source) if " " in source.strip() else session.table(source)
    held = cached(source)
    return held, held, None


def _kinds(merge: Merge, schema: pa.Schema, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Types for the columns of a text source: those of table columns with the same name, or equal to them in ``on``.

    Raises
    ------
    UsageError : these types differ.
    """
    found = {name: {value_type(schema.field(each)) for each in alike(name, schema.names)} for name in names}
    equal = equal_columns(merge.on, (merge.target_alias, schema.names), (merge.source_alias, names))
    for of_table, of_source in equal.items():
        found[of_source].add(value_type(schema.field(of_table)))
    for name, kinds in found.items():
        if len(kinds) > 1:
            raise UsageError(
                f"column {name} of the source matches table columns of several types",
                next_step="give the source as Parquet, which stores types",
            )
    return {name: kinds.pop() for name, kinds in found.items() if kinds}


@dataclass(slots=True)
class Attempts:
    """The attempts of one MERGE.

    The first creates the session and the source: a MERGE that the log alone forbids is refused before a session starts.
    """

    merge: Merge
    table: RowLevelTable
    dry_run: bool
    running: _Running | None = None
    held: DataFrame | None = None

    def find(self, snapshot: Snapshot) -> Work:
        if any(each.action == "insert" for each in self.merge.clauses):
            _check_insertable(snapshot, self.table.row_rules(snapshot))
        if self.running is None:
            session = session_of(self.merge.spark)
            with spark_errors():
                source, held, count = _source(session, self.merge, snapshot)
                try:
                    values = Values(source, source.count() if count is None else count)
                except BaseException:
                    held.unpersist()
                    raise
            self.running, self.held = _Running(self.merge, self.table, session, source, values, self.dry_run), held
        return self.running.find(snapshot)

    def release(self) -> None:
        if self.held is not None:
            self.held.unpersist()
            self.running = self.held = None


@dataclass(frozen=True, slots=True)
class _Running:
    merge: Merge
    table: RowLevelTable
    session: SparkSession
    source: DataFrame
    values: Values
    dry_run: bool

    def find(self, snapshot: Snapshot) -> Work:
        started = time.perf_counter()
        rules = self.table.row_rules(snapshot)
        schema = scanned(snapshot.schema, rules)
        moved = carried(snapshot.schema, self.source.columns)
        shapes = self._shapes(snapshot, rules, moved)
        narrowed = self._narrowing(snapshot, rules, shapes)
        tasks = scan_tasks(self.session, self.table, narrowed(snapshot), schema.names)
        with spark_errors():
            taken = self.source.columns
            options = self.table.storage.options
            live = live_rows(self.session, tasks, schema, options, taken=taken, carried=moved)
            changed = self._changed(snapshot, rules, live, moved, shapes)
        written = write_changes(
            changed,
            snapshot.schema,
            snapshot.partition_columns,
            self.table.row_write_tasks(snapshot, TARGET_BYTES),
            change_data=rules.change_data,
            options=self.table.storage.options,
            dry_run=self.dry_run,
        )
        changes = row_changes(self.table, tasks, written, dry_run=self.dry_run)
        if written.doubles:
            if not self.dry_run:
                discard(self.table, changes)
            raise UsageError(
                "several rows of the source match one row of the table",
                table=self.table.uri,
                version=snapshot.version,
                next_step="make the source unique in the columns of the merge condition; what must not match at all "
                "belongs in that condition, not in a clause",
            )
        millis = round((time.perf_counter() - started) * 1000)
        metrics = _metrics(written, self.values.count)
        return Work(
            changes,
            lambda added: bool(narrowed(added).files.num_rows),
            self._parameters(),
            {**metrics, "executionTimeMs": millis, "scanTimeMs": 0, "rewriteTimeMs": millis},
            updated=metrics["numTargetRowsUpdated"],
            inserted=metrics["numTargetRowsInserted"],
        )

    def _shapes(self, snapshot: Snapshot, rules: RowRules, moved: Mapping[str, str]) -> Shapes:
        """See ``shapes_in``. Raises RefusedError: an expression names a column that is only ``carried``."""
        if not moved:
            return Shapes({})
        check_rules(snapshot, rules, moved)
        hidden, given, texts = unseen(snapshot.schema, moved), set(), [self.merge.on]
        for clause in self.merge.clauses:
            values = self._values(clause, snapshot, rules)
            check_assigned(snapshot, rules, hidden, values)
            given.update(assigned(rules, moved, values))
            texts += [*values.values(), *([] if clause.condition is None else [clause.condition])]
        aliases = self.merge.target_alias, self.merge.source_alias
        check_untouched(snapshot, hidden, texts, *aliases)
        return shapes_in(self.session, snapshot, texts, given, *aliases)

    def _narrowing(self, snapshot: Snapshot, rules: RowRules, shapes: Shapes) -> Callable[[Snapshot], Snapshot]:
        """Keep only files that may hold a relevant row. Rows without a match are relevant if a clause covers them."""
        from pyspark.sql import functions as f

        if any(each.kind == NOT_MATCHED_BY_SOURCE for each in self.merge.clauses):
            return lambda given: given
        schema = snapshot.schema
        narrows = self._only_matched and not rules.spark_rules  # whose MERGE finds every match, see `_counted`
        conditions = [each.condition for each in self._matched if narrows and each.condition is not None]
        if len(conditions) < len(self._matched):
            conditions = []
        named = {name for sql in (self.merge.on, *conditions) for name in Condition.parse(sql, schema.names).columns}
        with spark_errors():
            target = shapes.shown(shape(self.session, pa.schema([field for field in schema if field.name in named])))
        target = target.alias(self.merge.target_alias)
        source = self.source.alias(self.merge.source_alias)
        with spark_errors():
            demanded = demanded_by(target.join(source, f.expr(self.merge.on)))
            if conditions:
                # As in delta-spark, what clauses demand of the table alone, without conclusions from the source: where
                # a row has several matches, it counts which files are read.
                clauses = [demanded_by(target.crossJoin(source).where(sql)) for sql in conditions]
                demanded = And((demanded, Or(tuple(clauses))))
        equal = equal_columns(
            self.merge.on,
            (self.merge.target_alias, [name for name in schema.names if char_length(schema.field(name)) is None]),
            (self.merge.source_alias, self.source.columns),
        )

        def narrowed(given: Snapshot) -> Snapshot:
            return self.values.narrow(self.table, files_that_may_match(self.table, given, demanded), equal)

        return narrowed

    @property
    def _matched(self) -> list[Clause]:
        return [each for each in self.merge.clauses if each.kind == MATCHED]

    @property
    def _only_matched(self) -> bool:
        return len(self._matched) == len(self.merge.clauses)

    @property
    def _only_deletes(self) -> bool:
        """Whether the number of matches of a row is irrelevant."""
        return [(each.action, each.condition) for each in self._matched] == [("delete", None)]

    def _counted(self, rules: RowRules) -> Column | None:
        """Which matches count although no clause acts on them, in search of rows with several; ``None``: none of them.

        As in delta-spark (``ClassicMergeExecutor.findTouchedFiles``): all, unless rows are only inserted. With clauses
        for matches alone, those for which all conditions together are null do not count. Spark's own MERGE
        (``RewriteMergeIntoTable``) counts every match if there is a clause for matches, and none otherwise.
        """
        from pyspark.sql import functions as f

        conditions = [each.condition for each in self._matched]
        if (conditions and conditions[-1] is None) or {each.kind for each in self.merge.clauses} == {NOT_MATCHED}:
            return None
        if rules.spark_rules:
            return f.lit(True) if self._matched else None
        if not self._only_matched:
            return f.lit(True)
        return reduce(or_, [f.expr(each) for each in conditions if each is not None]).isNotNull()

    def _joined(self, snapshot: Snapshot, rows: DataFrame, in_source: str) -> DataFrame:
        from pyspark.sql import functions as f

        kinds = {each.kind for each in self.merge.clauses}
        inserts, by_source = NOT_MATCHED in kinds, NOT_MATCHED_BY_SOURCE in kinds
        how = {(False, False): "inner", (True, False): "right", (False, True): "left", (True, True): "full"}
        # Not numbers of joined rows: if an executor dies and rows are joined again, these change.
        mark = f.monotonically_increasing_id() if self._only_deletes else f.lit(True)
        source = self.source.withColumn(in_source, mark).alias(self.merge.source_alias)
        joined = rows.alias(self.merge.target_alias).join(source, f.expr(self.merge.on), how[inserts, by_source])
        check_condition(joined, snapshot, self.merge.on)
        return joined

    def _changed(
        self, snapshot: Snapshot, rules: RowRules, live: TableRows, moved: Mapping[str, str], shapes: Shapes
    ) -> DataFrame:
        from pyspark.sql import functions as f

        live = replace(live, rows=shapes.shown(live.rows, moved))
        types = spark_types(snapshot.schema)
        taken = (*live.rows.columns, *self.source.columns)
        mark, clause_no, action_name, old_name = (
            unused(f"_dvm_{name}", taken) for name in ("in_source", "clause", "action", "old")
        )
        in_target, in_source = f.col(live.file).isNotNull(), f.col(mark).isNotNull()
        of_kind = {
            MATCHED: in_target & in_source,
            NOT_MATCHED: ~in_target,
            NOT_MATCHED_BY_SOURCE: ~in_source,
        }
        # The number of the first clause whose condition is true; null counts as false.
        chosen: Column = f.lit(None).cast("int")
        for number, clause in reversed(list(enumerate(self.merge.clauses))):
            holds = of_kind[clause.kind]
            if clause.condition is not None:
                holds = holds & f.coalesce(f.expr(clause.condition), f.lit(False))
            chosen = f.when(holds, f.lit(number)).otherwise(chosen)
        acts, counts = f.col(clause_no).isNotNull(), self._counted(rules)
        joined = self._joined(snapshot, live.rows, mark).withColumn(clause_no, chosen)
        joined = joined.where(acts if counts is None else acts | (in_target & in_source & counts))
        if self._only_deletes:
            once = joined.withColumn(mark, f.when(~in_target, f.col(mark)))
            joined = once.dropDuplicates([live.file, live.row, mark])
        # A row without a match has no values of the other side.
        alone = {
            NOT_MATCHED: self.source.alias(self.merge.source_alias),
            NOT_MATCHED_BY_SOURCE: live.rows.alias(self.merge.target_alias),
        }
        of_table = {
            name: f.col(quoted(self.merge.target_alias, moved.get(name, name))) for name in snapshot.schema.names
        }
        values = []
        for clause in self.merge.clauses:
            given = self._checked(clause, alone.get(clause.kind, joined), snapshot, rules)
            old = {} if clause.kind == NOT_MATCHED else of_table
            values.append(shapes.stored(alone.get(clause.kind, joined), given, types, rules, old))
        clause_is = [f.col(clause_no) == number for number in range(len(values))]

        def used(column: Column) -> Column:
            # Of a match that is only counted, nothing but the position is passed on.
            return column if counts is None else f.when(acts, column)

        row_id = row_id_name(snapshot.schema)
        columns = []
        for name in snapshot.schema.names:
            column = of_table[name]
            for number, new in enumerate(values):
                if name in new:
                    column = f.when(clause_is[number], new[name]).otherwise(column)
            columns.append(used(column).alias(name))
        action: Column = f.lit("")
        for number, clause in enumerate(self.merge.clauses):
            action = f.when(clause_is[number], f.lit(clause.label)).otherwise(action)
        before = f.struct(*[column.alias(name) for name, column in of_table.items()])
        place = [action.alias(action_name), f.col(live.file), f.col(live.row)]
        kept = [
            *([used(f.col(row_id)).alias(row_id)] if rules.row_ids else []),
            *([used(before).alias(old_name)] if rules.change_data else []),
        ]
        changed = joined.select(*place, *columns, *kept)
        action = f.col(action_name)
        return held_to(snapshot, rules, changed, types, (action != "") & ~action.startswith("delete"))

    def _checked(self, clause: Clause, rows: DataFrame, snapshot: Snapshot, rules: RowRules) -> dict[str, str]:
        """The new values of a clause. ``rows``: what its condition and its values may name."""
        from pyspark.sql import functions as f

        values = self._values(clause, snapshot, rules)
        named = [*values.values(), *([] if clause.condition is None else [clause.condition])]
        _ = rows.select(*[f.expr(sql).alias(f"_{at}") for at, sql in enumerate(named)]).schema  # analyzed
        if clause.condition is not None:
            check_condition(rows.where(clause.condition), snapshot, clause.condition)
        if rules.spark_rules and clause.action == "update":
            check_values(rows, snapshot, values)
        return values

    def _values(self, clause: Clause, snapshot: Snapshot, rules: RowRules) -> dict[str, str]:
        """The new value of each column that a clause sets, with names in the table's spelling."""
        if clause.action == "delete":
            return {}
        given = clause.values
        if given is None:
            of_source = {name.lower(): name for name in self.source.columns}
            wanted = [name for name in snapshot.schema.names if name not in rules.generated]
            if missing := [name for name in wanted if name.lower() not in of_source]:
                raise UsageError(
                    f"the source has no column {missing[0]!r}",
                    at=snapshot,
                    next_step="name the columns and their values instead of all",
                )
            given = {name: quoted(self.merge.source_alias, of_source[name.lower()]) for name in wanted}
        values = assignments(snapshot, rules, given, target=self.merge.target_alias, fields=clause.action != "insert")
        if clause.action == "insert":
            values = {**dict.fromkeys(snapshot.schema.names, "NULL"), **rules.defaults, **values}
        return values

    def _parameters(self) -> dict[str, object]:
        def of(kind: str) -> list[dict[str, str]]:
            return [
                {"actionType": each.action, **({} if each.condition is None else {"predicate": each.condition})}
                for each in self.merge.clauses
                if each.kind == kind
            ]

        return {
            "predicate": [self.merge.on],
            "matchedPredicates": of(MATCHED),
            "notMatchedPredicates": of(NOT_MATCHED),
            "notMatchedBySourcePredicates": of(NOT_MATCHED_BY_SOURCE),
        }


def _check_insertable(snapshot: Snapshot, rules: RowRules) -> None:
    if rules.identity or rules.fixed:
        raise RefusedError(
            f"rows can't be inserted: the table generates or restricts {', '.join((*rules.identity, *rules.fixed))}",
            at=snapshot,
            next_step="insert with the engine that wrote the table",
        )


def _metrics(written: Written, source_rows: int) -> dict[str, int]:
    """The operation parameters, as delta-spark records a MERGE."""

    def count(action: str, *kinds: str) -> int:
        return sum(written.counts.get(f"{action}:{kind}", 0) for kind in kinds)

    updated, deleted = count("update", MATCHED), count("delete", MATCHED)
    by_source_updated, by_source_deleted = (count(action, NOT_MATCHED_BY_SOURCE) for action in ("update", "delete"))
    inserted = count("insert", NOT_MATCHED)
    return {
        "numSourceRows": source_rows,
        "numOutputRows": updated + by_source_updated + inserted,
        "numTargetRowsUpdated": updated + by_source_updated,
        "numTargetRowsMatchedUpdated": updated,
        "numTargetRowsNotMatchedBySourceUpdated": by_source_updated,
        "numTargetRowsDeleted": deleted + by_source_deleted,
        "numTargetRowsMatchedDeleted": deleted,
        "numTargetRowsNotMatchedBySourceDeleted": by_source_deleted,
        "numTargetRowsInserted": inserted,
    }
