"""What ``fsck`` reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.report import Report
from dv_maintenance.units import iso_timestamp

if TYPE_CHECKING:
    from dv_maintenance.tables.fsck import Repair


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is missing or damaged.

    path : relative to the table, or a URI; "" if the log itself can't be read.
    uri : absolute and percent-encoded: where a copy has to be.
    kind, fault, reason : see ``Fault``.
    effect : what readers can't do, as a sentence.
    files : live data files whose readers fail.
    partitions : of these files, sorted; empty in a table without partitions.
    live_rows : rows that readers can't read; ``None``: unknown.
    deleted_rows : of the same files, rows that readers must not show.
    since : the first version that needs the file; ``None``: the log does not go back that far, or does not say.
    """

    path: str
    uri: str
    kind: str
    fault: str
    reason: str
    effect: str
    files: int
    partitions: tuple[str, ...]
    live_rows: int | None
    deleted_rows: int
    since: int | None


@dataclass(frozen=True, slots=True, repr=False)
class FsckReport(Report):
    """The result of a ``fsck``.

    version, timestamp : ``None`` if the log can't be read; epoch milliseconds.
    deep : whether footers and deletion vectors were read.
    files, dv_files, index_files : how many files readers need, and were looked for; each is counted once.
    bytes : of those that exist.
    footers, dvs : how many were read.
    unread : data files of formats that are not read here; existence and size are all that is known of them.
    files_damaged, live_rows_damaged : live data files whose readers fail, and their live rows; ``None``: unknown.
    remedies : ways to repair the table, the one that loses least first.
    warnings : what is unusual in the log, but stops no reader.
    """

    version: int | None
    timestamp: int | None
    deep: bool
    files: int
    dv_files: int
    index_files: int
    bytes: int
    footers: int
    dvs: int
    unread: int
    files_damaged: int
    live_rows_damaged: int | None
    damage: tuple[Damage, ...]
    remedies: tuple[Repair, ...]
    warnings: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        """As ``dvm fsck --json`` prints it."""
        body = asdict(self)
        body["timestamp"] = None if self.timestamp is None else iso_timestamp(self.timestamp)
        body["remedies"] = [
            {"how": each.how, "command": each.command_line, "loses": each.loses} for each in self.remedies
        ]
        return {"clean": self.clean, **body}
