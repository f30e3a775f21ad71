"""Which partitions a person chose: every filter is checked against the table and written as the table spells it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.errors import UsageError
from dv_maintenance.remedies import Remedy, run, setting
from dv_maintenance.tables.model import parse_partition, partition_name
from dv_maintenance.tables.partition_spec import fields_of, values_in
from dv_maintenance.tables.partition_values import Kind, example_of, sql_type, value_of
from dv_maintenance.units import first_few

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

Values = Mapping[str, str | None]

_NAMED: Final = 3
"""Up to so many partitions are named in a sentence."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions that match one of the filters.

    fits : for each partition of the table, whether it matches.
    filters : the filters, as the table spells columns and values.
    missing : names of the partitions that were chosen but have no live file.
    """

    fits: tuple[bool, ...]
    filters: tuple[dict[str, str | None], ...]
    missing: tuple[str, ...]


def select(snapshot: Snapshot, partitions: Sequence[str], filters: Iterable[Values]) -> Selection:
    """Match the filters with the table's partitions. A pure function.

    A filter names values of some partition columns, or fields where the specification has transforms. It matches the
    partitions whose text is the same; if there are none, those whose value is the same: ``2026-11-1`` and
    ``2026-11-01`` are one date. Partitions of a specification without that field do not match.

    partitions : names of the partitions with live files.

    Raises
    ------
    UsageError : a column is not a partition column; or a value does not have the type of its column.
    """
    # Filters on the same columns share one lookup: a backfill of a year of hours has thousands of filters.
    groups: dict[tuple[str, ...], dict[tuple[str | None, ...], None]] = {}
    for wanted in filters:
        spelled = _spelled(snapshot, wanted)
        groups.setdefault(tuple(spelled), {})[tuple(spelled.values())] = None
    live = [parse_partition(name) for name in partitions]
    fits = [False] * len(live)
    found: list[dict[str, str | None]] = []
    missing: list[str] = []
    for columns, rows in groups.items():
        lookup = _Lookup(snapshot, columns, live)
        for texts in rows:
            hits = lookup.find(texts)
            for code in hits:
                fits[code] = True
            if not hits:
                missing.append(partition_name(dict(zip(columns, texts, strict=True))))
            known = {values_in(live[code], columns) or () for code in hits} or {texts}
            found += [dict(zip(columns, each, strict=True)) for each in sorted(known, key=repr)]
    return Selection(tuple(fits), tuple(found), tuple(missing))


def refuse_missing(snapshot: Snapshot, partitions: Sequence[str], missing: Sequence[str]) -> None:
    """Raise UsageError if partitions were chosen that have no live file: a mistyped one would look like success."""
    if not missing:
        return
    hint = _hint(snapshot, missing[0], partitions)
    raise UsageError(
        no_live_file(missing),
        at=snapshot,
        next_step=Remedy.of(hint).then(
            "{} lists the partitions; {} accepts it", run("health", snapshot.table), setting("missing_ok", True)
        ),
    )


def no_live_file(missing: Sequence[str]) -> str:
    """A clause for partitions without a live file."""
    return f"no live file is in {first_few(missing, _NAMED)}"


def check_value(snapshot: Snapshot, column: str, text: str | None) -> Hashable:
    """The value of a text in a partition column. Raises UsageError with the column, its type and an example."""
    type_ = _kind(snapshot, column)
    try:
        return value_of(text, type_)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a value of partition column {column!r}, of type {sql_type(type_)}",
            at=snapshot,
            next_step=f"write it like {partition_name({column: _example(snapshot, column, type_)})}",
        ) from None


def _kind(snapshot: Snapshot, column: str) -> Kind:
    return fields_of(snapshot.specs)[column].kind(snapshot.schema)


class _Lookup:
    """Partitions by the texts of some columns, and by their values."""

    def __init__(self, snapshot: Snapshot, columns: tuple[str, ...], live: Sequence[Values]) -> None:
        self._snapshot, self._columns = snapshot, columns
        self._by_text: dict[tuple[str | None, ...], list[int]] = {}
        for code, values in enumerate(live):
            if (texts := values_in(values, columns)) is not None:
                self._by_text.setdefault(texts, []).append(code)
        self._by_value: dict[tuple[Hashable, ...], list[int]] | None = None

    def find(self, texts: tuple[str | None, ...]) -> list[int]:
        """Raises UsageError."""
        if texts in self._by_text:
            return self._by_text[texts]
        known = zip(self._columns, texts, strict=True)
        wanted = tuple(check_value(self._snapshot, column, text) for column, text in known)
        if self._by_value is None:
            self._by_value = {}
            for each, codes in self._by_text.items():
                self._by_value.setdefault(self._values(each), []).extend(codes)
        return self._by_value.get(wanted, [])

    def _values(self, texts: tuple[str | None, ...]) -> tuple[Hashable, ...]:
        kinds = [_kind(self._snapshot, column) for column in self._columns]
        return tuple(_stored(text, kind) for text, kind in zip(texts, kinds, strict=True))


def _stored(text: str | None, type: Kind) -> Hashable:
    """The value of a stored text. Writers may use other spellings: such a text equals only itself."""
    try:
        return value_of(text, type)
    except ValueError:
        return ("text", text)


def _spelled(snapshot: Snapshot, wanted: Values) -> dict[str, str | None]:
    """A filter with the columns as the table spells them, in its order. Raises UsageError."""
    fields = fields_of(snapshot.specs)
    columns = tuple(fields)
    given: dict[str, str | None] = {}
    for name, text in wanted.items():
        alike = [name] if name in columns else [each for each in columns if each.lower() == name.lower()]
        if len(alike) != 1:
            known = ", ".join(map(str, fields.values()))
            raise UsageError(
                f"{name!r} is not a partition column",
                at=snapshot,
                next_step=f"use {known}" if known else "leave the partitions out: this table is not partitioned",
            )
        given[alike[0]] = text
    return {column: given[column] for column in columns if column in given}


def _example(snapshot: Snapshot, column: str, type: Kind) -> str:
    """The newest value in the table, or one of the type."""
    names = snapshot.files["partition"].unique().to_pylist()
    texts = {text for name in names if (text := parse_partition(name).get(column))}
    return max(texts) if texts else example_of(type)


def _hint(snapshot: Snapshot, missing: str, partitions: Sequence[str]) -> str:
    """Partitions that the missing one may be a misspelling of, or the range of those that exist."""
    from difflib import get_close_matches

    if not partitions:
        return "the table has no live file. "
    wanted, live = parse_partition(missing), [parse_partition(name) for name in partitions]
    # Only text is mistyped by a letter: another date or number is another value.
    exact = {column: text for column, text in wanted.items() if _kind(snapshot, column) != pa.string()}
    having = {texts for values in live if (texts := values_in(values, tuple(wanted))) is not None}
    names = sorted(partition_name(dict(zip(wanted, texts, strict=True))) for texts in having)
    if not names:
        return f"no partition with a live file has {' and '.join(wanted)}. "
    same = [name for name in names if exact.items() <= parse_partition(name).items()] if exact != wanted else []
    close = get_close_matches(missing, same, 1, 0.8)
    return f"did you mean {close[0]}? " if close else f"the table's partitions go from {names[0]} to {names[-1]}. "
