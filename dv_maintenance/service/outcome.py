"""The outcome of a verb, for people and for programs: one type for every face, to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from dv_maintenance.errors import UsageError
from dv_maintenance.service.chart import Picture

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Number = bool | int | float | str
"""A value that can be plotted, a name, or a boolean."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a verb did, or what was found.

    ``reason`` : why, in a few words of Markdown; an orchestrator shows it first.
    ``numbers`` : by name; shares of 1 rounded to four digits, sizes in bytes, times in seconds.
    ``moments`` : epoch milliseconds by name.
    ``tables`` : rows by name, the same keys in each row: ``plan`` has the first steps of the plan, ``rewrites``
        the first of those that were run.
    ``picture`` : the share of deleted rows by partition, before and after where something was purged.
    ``texts`` : Markdown by name: the whole plan in words, the worst partitions.
    ``details`` : further facts in order, each a line of its own.
    ``lines`` : further facts by name: warnings, paths, the files that were kept and why.
    ``problems`` : what reading the result back found wrong; the run then counts as failed.
    ``refused`` : under a dry run, why the real one would be refused.
    ``damage`` : files that the table's readers need and that are missing or damaged; the run then counts as failed.
    ``partitions`` : the outcome for each chosen partition, by key.
    ``report`` : plain data, as the command line prints it with ``--json``.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    reason: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    moments: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, tuple[Mapping[str, str | int], ...]] = field(default_factory=dict)
    picture: Picture | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    refused: str = ""
    damage: tuple[str, ...] = ()
    partitions: Mapping[str, Outcome] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data that :meth:`from_json` reads back."""
        import orjson

        body: dict[str, Any] = orjson.loads(_adapter().dump_json(self))
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Outcome:
        """Raises UsageError."""
        import orjson
        from pydantic import ValidationError

        try:
            return _adapter().validate_json(orjson.dumps(body))
        except (ValidationError, TypeError) as error:
            raise UsageError("not an outcome", next_step="pass on what the service returned") from error


@dataclass(frozen=True, slots=True)
class Column:
    """``type`` in Arrow's spelling; only the outer levels of a type that is too long for a page."""

    name: str
    type: str
    description: str | None
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableReport:
    """The health of a table, for its own page.

    ``version`` : the version that ``data_version`` belongs to.
    ``data_version`` : the last version that changed what a query returns; ``None``: the asset's owner reports it.
    """

    version: int
    data_version: int | None
    state: Outcome
    columns: tuple[Column, ...]


@cache
def _adapter() -> TypeAdapter[Outcome]:
    # Imported here: `dvm health` renders an outcome without pydantic.
    from pydantic import TypeAdapter

    return TypeAdapter(Outcome)
