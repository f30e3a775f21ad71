"""``dvm doctor``: checks this machine, and says how to get what is missing. Imports nothing that it checks."""

from __future__ import annotations

import platform
import shutil
import tempfile
from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dv_maintenance.cli.output import Output, bytes_text, table
from dv_maintenance.engine.spark.session import MIN_JAVA, java_version
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, UsageError
from dv_maintenance.tables.registry import formats, known_format

_PROJECT = "dv-maintenance"
# Spark tasks spill rows and buffer new files there.
_TEMP_BYTES = 1 << 30
_FACES = {"airflow": "for Airflow's operators", "dagster": "for assets, sensors and checks"}


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    found, needed : versions or states, in words.
    how : how to get what is needed; ``None`` if the check is ``ok``.
    """

    name: str
    ok: bool
    found: str | None
    needed: str
    how: str | None = None


def doctor(args: Namespace, out: Output) -> int:
    if args.try_writing and not args.table:
        raise UsageError("--try-writing needs a TABLE", next_step="see 'dvm doctor --help'")
    of_catalog = _catalog(args, out) if args.table else []
    # The name of a catalog alone has no dot.
    is_table = args.table and not (of_catalog and "." not in args.table)
    of_table, kind, damaged = _table(args, out) if is_table else (None, None, False)
    packages = [_package(*each) for each in _requirements(kind)]
    checks = [_python(), _java(), *packages, *_pyspark_client(), _temp()]
    checks += of_catalog
    checks += [] if of_table is None else [of_table]
    checks += [_put_if_absent(args, out)] if args.try_writing else []
    out.result({"checks": [asdict(check) for check in checks]}, lambda: _text(checks))
    if damaged:
        return DamagedTableError.exit_code
    return 0 if all(check.ok for check in checks) else 1


def _text(checks: list[Check]) -> str:
    rows = [("ok" if check.ok else "MISSING", check.name, check.found or "-", check.needed) for check in checks]
    lines = [table(("", "check", "found", "needed"), rows, left=4)]
    lines += [f"{check.name}: {check.how}" for check in checks if not check.ok]
    return "\n".join(lines)


def _python() -> Check:
    """Checks this interpreter against the package's own ``Requires-Python``."""
    needed = SpecifierSet(metadata.metadata(_PROJECT)["Requires-Python"])
    found = platform.python_version()
    good = needed.contains(found, prereleases=True)
    return _checked("python", good, found, _range(needed), f"install Python {_range(needed)}")


def _java() -> Check:
    found = java_version()
    how = (
        f"Debian, Ubuntu: apt-get install openjdk-{MIN_JAVA}-jre-headless; Fedora, RHEL: dnf install "
        f"java-{MIN_JAVA}-openjdk-headless; macOS: brew install openjdk@{MIN_JAVA}; set JAVA_HOME if 'java' is not on "
        "the PATH. --engine local needs no Java"
    )
    return _checked(
        "java", (found or 0) >= MIN_JAVA, None if found is None else str(found), f"{MIN_JAVA} or newer", how
    )


def _requirements(kind: str | None) -> list[tuple[Requirement, str | None]]:
    """The requirements in the installed package's metadata, each with its purpose if it is optional.

    ``kind``: the format of the table to check, whose extra is not optional.
    """
    declared = [Requirement(text) for text in metadata.requires(_PROJECT) or ()]
    base = [each for each in declared if each.marker is None or each.marker.evaluate({"extra": ""})]
    wanted = known_format(kind)
    of_formats = {each.extra: f"for {each.title} tables" for each in formats() if each.extra}
    whys: dict[tuple[str, str], tuple[Requirement, list[str]]] = {}
    for extra, why in {**_FACES, **of_formats}.items():
        for each in declared:
            if each not in base and each.marker is not None and each.marker.evaluate({"extra": extra}):
                # What several formats need is one requirement.
                _, found = whys.setdefault((each.name, str(each.specifier)), (each, []))
                found.append("" if wanted is not None and wanted.extra == extra else why)
    of_extras = [(each, " and ".join(found) if all(found) else None) for each, found in whys.values()]
    return [*((each, None) for each in base), *of_extras]


def _package(requirement: Requirement, optional: str | None) -> Check:
    """``optional``: its purpose; the package may then be missing, but not have a wrong version."""
    needed = _range(requirement.specifier) + (f" ({optional})" if optional else "")
    found: str | None = None
    try:
        found = metadata.version(requirement.name)
        good = requirement.specifier.contains(found, prereleases=True)
    except metadata.PackageNotFoundError:
        good = optional is not None
    how = f"pip install '{requirement.name}{requirement.specifier}'"
    return _checked(requirement.name, good, found, needed, how)


def _pyspark_client() -> list[Check]:
    """Airflow's Spark provider requires it. It installs into the folder of pyspark, and the later one wins."""
    found = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            return []
    client, same = found["pyspark-client"], found["pyspark"] == found["pyspark-client"]
    how = "pip install 'dv-maintenance[spark-provider]': of equal versions, the files are the same"
    return [_checked("pyspark-client", same, client, f"{found['pyspark']}, as pyspark", how)]


def _range(specifier: SpecifierSet) -> str:
    """A version range in words: ``>=4.0,<5`` is "4.0 or newer, below 5"."""
    words = {">=": "{} or newer", "<": "below {}"}
    ordered = sorted(specifier, key=lambda each: each.operator, reverse=True)
    return ", ".join(words.get(each.operator, each.operator + "{}").format(each.version) for each in ordered)


def _temp() -> Check:
    folder, free = "no folder", None
    with suppress(OSError):
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    found = f"{folder}, {'not writable' if free is None else bytes_text(free) + ' free'}"
    needed = f"writable, {bytes_text(_TEMP_BYTES)} free"
    return _checked("temp", (free or 0) >= _TEMP_BYTES, found, needed, "point TMPDIR to a disk with enough space")


def _catalog(args: Namespace, out: Output) -> list[Check]:
    """What the catalog that a name begins with lets its user do."""
    from dv_maintenance.catalogs.examination import examined
    from dv_maintenance.cli.access import entry

    own = entry(args, out)
    found = examined(args.table) if own is None else examined(own.table, own.catalogs) if own.table else []
    return [_checked(each.check, each.ok, each.found, each.needed, each.how) for each in found]


def _table(args: Namespace, out: Output) -> tuple[Check, str | None, bool]:
    """The check of the table, its format if known, and whether it is damaged."""
    from dv_maintenance.cli.access import open_table
    from dv_maintenance.service import verbs

    kind, damaged = None, False
    try:
        opened = open_table(args, out)
        kind = opened.format
        looked = verbs.quick_check(opened)
        found, good = looked.reason, not looked.damage
        how = f"{looked.damage[0]} dvm fsck {opened.uri} shows how to repair it" if looked.damage else ""
        if looked.damage:
            found = f"{found}, with missing or damaged files"
        elif looked.lines:
            found = f"{found}; {looked.lines['warnings'][0]}"
        damaged = bool(looked.damage)
    except (DvMaintenanceError, OSError) as error:
        found, good = str(error), False
        how = str(getattr(error, "next_step", None) or "") or "check the path, the permissions and --storage-option"
        damaged = isinstance(error, DamagedTableError)
    return _checked("table", good, found, "a readable table", how), kind, damaged


def _put_if_absent(args: Namespace, out: Output) -> Check:
    from dv_maintenance.cli.access import open_table

    needed = "a second put of the same object fails"
    try:
        opened = open_table(args, out)
        known = known_format(opened.format)
        opened.storage.prove_put_if_absent(known.commits if known else "", anyhow=True)
    except (DvMaintenanceError, OSError) as error:
        how = str(getattr(error, "next_step", None) or "") or "check the permissions"
        return _checked("put-if-absent", False, getattr(error, "message", str(error)), needed, how)
    return _checked("put-if-absent", True, "it does", needed, "")


def _checked(name: str, ok: bool, found: str | None, needed: str, how: str) -> Check:
    return Check(name, ok, found, needed, None if ok else how)
