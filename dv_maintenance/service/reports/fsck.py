"""What a table's storage lacks, as an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.remedies import run, setting
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.text import shown, size
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.fsck import Damage, FsckReport


_OLD: Final = "This is an older version: a vacuum deletes such files once the retention has passed, as intended."


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """A quick check of a table's files.

    damage : ``None``: nothing was checked.
    error : why not; ``None``: they are too many for a verb that must be fast.
    """

    damage: tuple[Damage, ...] | None
    error: str | None = None


def with_quick_check(outcome: Outcome, files: int, found: QuickCheck) -> Outcome:
    """The outcome, and which of the table's live files are missing or have another size."""
    damage = found.damage or ()
    named = shown([of_damage(each) for each in damage])
    warnings: tuple[str, ...] = ()
    if damage:
        said = f"{count(len(damage), 'file')} that readers need {_is(len(damage))} missing or damaged"
        warnings = (f"{said}: {run('fsck')} shows how to repair the table",)
    elif found.error is not None:
        warnings = (f"whether all files exist is unknown: {found.error}",)
    elif found.damage is None and files:
        warnings = (f"its {files:,} files were not checked: {run('fsck')} checks them",)
    if not warnings:
        return replace(outcome, report=_with_warnings(outcome.report, (), looked=found.damage is not None, damage=()))
    lines = {**outcome.lines, "warnings": (*outcome.lines.get("warnings", ()), *warnings)}
    report = _with_warnings(outcome.report, warnings, looked=found.damage is not None, damage=damage)
    return replace(outcome, lines=lines, damage=(*outcome.damage, *named), report=report)


def _with_warnings(
    report: Mapping[str, Any], warnings: tuple[str, ...], *, looked: bool, damage: tuple[Damage, ...]
) -> dict[str, Any]:
    storage = {"looked": looked, "damage": [asdict(each) for each in damage]}
    return {**report, "warnings": [*report.get("warnings", ()), *warnings], "storage": storage}


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def of_fsck(report: FsckReport, *, old: bool = False) -> Outcome:
    """The damage file by file, then how to repair it, starting with the way that loses least. ``old``: the version is
    not the newest, and a vacuum may delete its files.
    """
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
    unread = (
        f"{count(report.unread, 'data file')} in a format that this release can't read: "
        "checked only for existence and size"
    )
    return Outcome(
        _damaged(report) if report.damage else _clean(report),
        {name: number for name, number in numbers.items() if number is not None},
        details=((unread,) if report.unread else ()) + ((_OLD,) if old else ()),
        lines={
            **({"warnings": report.warnings} if report.warnings else {}),
            **({"repair": _remedies(report)} if report.damage else {}),
        },
        damage=shown([of_damage(each) for each in report.damage]),
        report=report.to_json(),
    )


def of_damage(damage: Damage) -> str:
    """One line: the file, what is wrong with it, and who is affected."""
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
    if not report.files:
        return "Clean: the table has no files."
    named = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    exist = "exists" if report.files == 1 and len(found) == 1 else "exist"
    there = f"Clean: {named} {exist}, with the sizes in the log ({size(report.bytes)})."
    if not report.deep:
        return f"{there} Their content was not read: {setting('deep')} reads it."
    read = f"{count(report.footers, 'footer')} and {count(report.dvs, 'deletion vector')}"
    return f"{there} {read} were read and agree with the log."


def _remedies(report: FsckReport) -> tuple[str, ...]:
    lines = []
    for number, each in enumerate(report.remedies, 1):
        lines.append(f"{number}. {each.how} Loses: {each.loses[0].lower()}{each.loses[1:]}")
        lines += [f"   {each.command_line}"] if each.command is not None else []
        if number == 1 and report.damage and report.damage[0].path and each.command is None:
            lines += [f"   {one.uri}" for one in report.damage[:10]]
            more = len(report.damage) - 10
            lines += [f"   and {more:,} more: the report in JSON has all"] if more > 0 else []
    return tuple(lines)
