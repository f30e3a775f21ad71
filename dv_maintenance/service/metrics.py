"""The state of tables as metrics for Prometheus: a text file for the node exporter's collector, or a push gateway.

The format is Prometheus' text exposition format 0.0.4. Names have base units; a number that is unknown is left out, as
a gap in a graph is right and a zero is not.
"""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from dv_maintenance.errors import StorageUnavailableError, UsageError, redacted
from dv_maintenance.service.local_file import replace_file
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.service.lake import LakeTable

_PUSH_SECONDS: Final = 10
# What a push replaces: the group of this job.
_GROUP: Final = "/metrics/job/dvm"

_Value = Callable[["LakeTable", int], float | None]


def _age(table: LakeTable, now: int) -> float | None:
    if table.oldest_dv is None:
        return 0 if table.files_with_dv == 0 else None
    return max(now - table.oldest_dv, 0) / 1000


_GAUGES: Final[dict[str, tuple[str, _Value]]] = {
    "dvm_table_readable": ("Whether readers can read the newest version.", lambda table, _: int(table.error is None)),
    "dvm_files": ("Live data files.", lambda table, _: table.files),
    "dvm_files_with_dv": ("Live data files with a deletion vector.", lambda table, _: table.files_with_dv),
    "dvm_small_files": ("Live data files below the policy's limit.", lambda table, _: table.small_files),
    "dvm_table_size_bytes": ("Size of the live data files.", lambda table, _: table.size_bytes),
    "dvm_deleted_rows": ("Rows that are deleted, but still in live files.", lambda table, _: table.deleted_rows),
    "dvm_deleted_ratio": ("Share of the rows in live files that are deleted.", lambda table, _: table.deleted_ratio),
    "dvm_oldest_dv_age_seconds": (
        "Minimum age of the oldest deleted rows that are still in live files; 0 if there are none.",
        _age,
    ),
    "dvm_vacuum_expired_bytes": (
        "Size of files that a vacuum may delete now.",
        lambda table, _: table.expired_bytes,
    ),
    "dvm_vacuum_expiring_bytes": (
        "Size of unneeded files that are still inside the retention.",
        lambda table, _: table.expiring_bytes,
    ),
}
_JOBS: Final = ("optimize", "vacuum", "manifest")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of one table that ended.

    jobs : what it did, joined by ``+``.
    seconds : from its start to its end.
    """

    table: str
    jobs: str
    seconds: float
    succeeded: bool


def exposition(tables: Iterable[LakeTable], now: int | None = None, runs: Iterable[LastRun] = ()) -> str:
    """The metrics of these tables, labelled by ``table`` and ``format``.

    now : epoch milliseconds.
    runs : those that an orchestrator knows of.
    """
    now = epoch_millis(now)
    rows = sorted(tables, key=lambda each: each.name)
    lines: list[str] = []
    for name, (text, value) in _GAUGES.items():
        lines += _head(name, text)
        samples = ((_labels(each), value(each, now)) for each in rows)
        lines += [f"{name}{{{labels}}} {number:.15g}" for labels, number in samples if number is not None]
    lines += _head("dvm_due", "Whether the job is due.")
    lines += [
        f'dvm_due{{{_labels(each)},job="{job}"}} {int(job in each.due)}'
        for each in rows
        if each.error is None
        for job in _JOBS
    ]
    ended = sorted(runs, key=lambda each: (each.table, each.jobs))
    if ended:
        labels = {each: f'table="{_escaped(each.table)}",job="{_escaped(each.jobs)}"' for each in ended}
        lines += _head("dvm_run_duration_seconds", "How long the last run of the table took.")
        lines += [f"dvm_run_duration_seconds{{{labels[each]}}} {each.seconds:.15g}" for each in ended]
        lines += _head("dvm_run_succeeded", "Whether the last run of the table succeeded.")
        lines += [f"dvm_run_succeeded{{{labels[each]}}} {int(each.succeeded)}" for each in ended]
    lines += [*_head("dvm_scan_timestamp_seconds", "When the tables were inspected."), _sample_of_time(now), ""]
    return "\n".join(lines)


def publish(text: str, target: str) -> None:
    """Write the metrics to a file, atomically, or push them to a gateway.

    target : a path that ends in ``.prom``, or the URL of a push gateway, such as ``http://gateway:9091``. Without a
        path in the URL the group is ``job="dvm"``.

    Raises
    ------
    UsageError : the target is neither, or the file can't be written.
    StorageError : the gateway can't be reached or refuses the metrics.
    """
    if target.startswith(("http://", "https://")):
        _push(text, target)
    elif target.endswith(".prom"):
        replace_file(target, text)
    else:
        raise UsageError(
            "metrics go to a .prom file or to the http:// address of a push gateway",
            next_step="name a file in the folder of the node exporter's textfile collector, or a gateway",
        )


def _head(name: str, text: str) -> Sequence[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} gauge"


def _sample_of_time(now: int) -> str:
    return f"dvm_scan_timestamp_seconds {now / 1000:.15g}"


def _labels(table: LakeTable) -> str:
    return f'table="{_escaped(table.name)}",format="{_escaped(table.format or "unknown")}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _push(text: str, url: str) -> None:
    parts = urlsplit(url)
    path = _GROUP if parts.path in {"", "/"} else parts.path
    place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, parts.query, ""))
    request = urllib.request.Request(place, text.encode(), method="PUT")  # noqa: S310 - http or https
    request.add_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=_PUSH_SECONDS):  # noqa: S310 - http or https
            pass
    except urllib.error.HTTPError as error:
        raise StorageUnavailableError(
            f"the push gateway answered {error.code} {error.reason}: {redacted(place)}"
        ) from error
    except OSError as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise StorageUnavailableError(f"the push gateway can't be reached: {why}: {redacted(place)}") from error
