"""What a table's storage lacks, as an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.text import count, shown, size

if TYPE_CHECKING:
    from dv_maintenance.maintenance.fsck import Damage, FsckReport

__all__ = ["of_damage", "of_fsck"]


def of_fsck(report: FsckReport) -> Outcome:
    """The damage file by file, then what repairs it, the way that loses least first."""
    numbers = {
        "version": report.version,
        "files": report.files,
        "dv_files": report.dv_files,
        "index_files": report.index_files,
        "bytes": report.bytes,
        "damaged": len(report.damage),
        "files_damaged": report.files_damaged,
        "live_rows_damaged": report.live_rows_damaged,
    }
    unread = f"{count(report.unread, 'data file')} of a format that is not read here: only existence and size are known"
    return Outcome(
        _damaged(report) if report.damage else _clean(report),
        {name: number for name, number in numbers.items() if number is not None},
        details=(unread,) if report.unread else (),
        lines={"repair": _remedies(report)} if report.damage else {},
        damage=shown([of_damage(each) for each in report.damage]),
        report=report.to_json(),
    )


def of_damage(damage: Damage) -> str:
    """One line: the file, what is wrong with it, whom it concerns."""
    where = f" ({_partitions(damage.partitions)})" if damage.partitions else ""
    since = "" if damage.since is None else f" Needed since version {damage.since}."
    return f"{damage.path or damage.uri}{where}: {damage.reason}. {damage.effect}{since}"


def _partitions(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other partition')}"


def _damaged(report: FsckReport) -> str:
    if not report.files_damaged:
        return f"Damaged: {count(len(report.damage), 'fault')}."
    rows = "an unknown number of live rows" if report.live_rows_damaged is None else _rows(report.live_rows_damaged)
    files = f"{report.files_damaged:,} of {count(report.files, 'data file')}"
    return f"Damaged: {count(len(report.damage), 'fault')}. Readers of {files} fail: {rows}."


def _rows(number: int) -> str:
    return count(number, "live row")


def _clean(report: FsckReport) -> str:
    files = {"deletion vector file": report.dv_files, "index file": report.index_files}
    found = [count(report.files, "data file"), *(count(number, noun) for noun, number in files.items() if number)]
    named = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    there = f"Clean: {named} exist with the sizes that the log says ({size(report.bytes)})."
    if not report.deep:
        return f"{there} Their content was not read: --deep reads it."
    read = f"{count(report.footers, 'footer')} and {count(report.dvs, 'deletion vector')}"
    return f"{there} {read} were read and agree with the log."


def _remedies(report: FsckReport) -> tuple[str, ...]:
    lines = []
    for number, each in enumerate(report.remedies, 1):
        lines.append(f"{number}. {each.how} Loses: {each.loses[0].lower()}{each.loses[1:]}")
        lines += [f"   {each.command}"] if each.command is not None else []
        if number == 1 and report.damage and report.damage[0].path and each.command is None:
            lines += [f"   {one.uri}" for one in report.damage[:10]]
            lines += [f"   and {len(report.damage) - 10:,} more: --json has all"] if len(report.damage) > 10 else []
    return tuple(lines)
