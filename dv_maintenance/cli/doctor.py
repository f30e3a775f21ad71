"""``dvm doctor``: what this machine lacks, and how to get it. Reads versions without importing or starting anything."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata

from dv_maintenance.cli.output import Output, bytes_text, table
from dv_maintenance.engine.spark_session import MIN_JAVA, java_version
from dv_maintenance.errors import DvMaintenanceError

__all__ = ["doctor"]

_PYTHON = (3, 11)
# What a format can't do without.
_OF_FORMAT = {"lance": "pylance", "paimon": "fastavro"}
# Rows of a Spark task are spilled and new files are buffered here.
_TEMP_BYTES = 1 << 30
_PACKAGES = {
    "pyspark": ("4.0", "5"),
    "pyarrow": ("18", None),
    "pandas": ("2.2", "3"),
    "pyroaring": ("1.0", None),
    "obstore": ("0.8", "1"),
    "dagster": ("1.11", "2"),
    "dagster-webserver": ("1.11", "2"),
    # As tables.lance.library says; importing that would need what is looked for here.
    "pylance": ("12.0.0", None),
    "fastavro": ("1.9", None),
}
_OPTIONAL = {
    "dagster-webserver": "for the UI",
    "pylance": "to read and rewrite Lance tables, on Spark's workers too",
    "fastavro": "for Paimon tables: even to look at them",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was ``found``, what is ``needed``, and ``how`` to get it if it is not ``ok``."""

    name: str
    ok: bool
    found: str | None
    needed: str
    how: str | None = None


def doctor(args: Namespace, out: Output) -> int:
    of_table, kind = _table(args, out) if args.table else (None, None)
    optional = {name: why for name, why in _OPTIONAL.items() if name != _OF_FORMAT.get(kind or "")}
    checks = [_python(), _java(), *(_package(name, optional) for name in _PACKAGES), _temp()]
    checks += [] if of_table is None else [of_table]
    out.result({"checks": [asdict(check) for check in checks]}, lambda: _text(checks))
    return 0 if all(check.ok for check in checks) else 1


def _text(checks: list[Check]) -> str:
    rows = [("ok" if check.ok else "MISSING", check.name, check.found or "-", check.needed) for check in checks]
    lines = [table(("", "check", "found", "needed"), rows, left=4)]
    lines += [f"{check.name}: {check.how}" for check in checks if not check.ok]
    return "\n".join(lines)


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return _checked("python", sys.version_info[:2] >= _PYTHON, found, "3.11 or newer", "install Python 3.11 or newer")


def _java() -> Check:
    found = java_version()
    how = (
        f"Debian, Ubuntu: apt-get install openjdk-{MIN_JAVA}-jre-headless; Fedora, RHEL: dnf install "
        f"java-{MIN_JAVA}-openjdk-headless; macOS: brew install openjdk@{MIN_JAVA}; set JAVA_HOME if 'java' is not on "
        "the PATH. --engine local does without"
    )
    return _checked(
        "java", (found or 0) >= MIN_JAVA, None if found is None else str(found), f"{MIN_JAVA} or newer", how
    )


def _package(name: str, optional: Mapping[str, str]) -> Check:
    """``optional``: may be missing, but not be of a wrong version; and what it is for."""
    low, below = _PACKAGES[name]
    needed = f"{low} or newer" + (f", below {below}" if below else "")
    if name in optional:
        needed += f" ({optional[name]})"
    found: str | None = None
    try:
        found = metadata.version(name)
        good = _numbers(low) <= _numbers(found) and (below is None or _numbers(found) < _numbers(below))
    except metadata.PackageNotFoundError:
        good = name in optional
    wanted = f"{name}>={low}" + (f",<{below}" if below else "")
    return _checked(name, good, found, needed, f"pip install '{wanted}'")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _temp() -> Check:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free: int | None = shutil.disk_usage(folder).free
    except OSError:
        free = None
    found = f"{folder}, {'not writable' if free is None else bytes_text(free) + ' free'}"
    needed = f"writable, {bytes_text(_TEMP_BYTES)} free"
    return _checked("temp", (free or 0) >= _TEMP_BYTES, found, needed, "point TMPDIR to a disk with room")


def _table(args: Namespace, out: Output) -> tuple[Check, str | None]:
    """And its format, if that is known."""
    from dv_maintenance.cli.access import open_table

    kind = None
    try:
        opened = open_table(args, out)
        kind = opened.format
        found, good, how = f"{opened.format} table at version {opened.version()}", True, ""
    except (DvMaintenanceError, OSError) as error:
        found, good = str(error), False
        how = getattr(error, "next_step", None) or "check the path, the permissions and --storage-option"
    return _checked("table", good, found, "a table that can be read", how), kind


def _checked(name: str, ok: bool, found: str | None, needed: str, how: str) -> Check:
    return Check(name, ok, found, needed, None if ok else how)
