"""A table with a folder that is a link to somewhere else: it is read, and nothing is written or deleted beyond it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import sampled

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend

# Each with the folders that may be links.
BACKENDS: dict[str, tuple[Callable[[str], TableBackend], tuple[str, ...]]] = {
    "delta": (DeltaBackend, ("p=a", "_delta_log")),
    "lance": (LanceBackend, ("data", "_versions", "_deletions")),
    "iceberg": (IcebergBackend, ("data/p=a", "metadata")),
    "paimon": (PaimonBackend, ("p=a", "p=a/bucket-0", "snapshot", "manifest")),
}


def purged(kind: str, place: Path) -> TableBackend:
    """A table of three files. A purge has taken one deleted row out of two of them."""
    backend = BACKENDS[kind][0](str(place))
    backend.create()
    for number in range(3):
        backend.append("a", [(10 * number + at, "a", "x") for at in range(10)])
    backend.delete([1, 11])
    purge(backend.open(), backend.engine())
    return backend


@pytest.mark.parametrize(
    ("kind", "folder"), sampled([(kind, folder) for kind, (_, folders) in BACKENDS.items() for folder in folders], 3)
)
def test_folders_that_are_links(tmp_path: Path, kind: str, folder: str) -> None:
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    backend = purged(kind, place)
    backend.delete([2, 22])
    rows = sorted(backend.rows())

    (place / folder).rename(elsewhere)
    (place / folder).symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    assert sorted(backend.rows()) == rows
    with pytest.raises(RefusedError, match="a link"):
        purge(backend.open(), backend.engine())
    for lite in (True, False):
        with suppress(RefusedError):
            vacuum(backend.open(), VacuumRequest(retention=0, allow_short_retention=True, lite=lite))
    assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before
    assert sorted(backend.rows()) == rows


# -- verbs that write, move or delete --------------------------------------------------------------------------------

ASIDE = VacuumGuard(1, quarantine=True)
VERBS: dict[str, Callable[[TableBackend], object]] = {
    "aside": lambda backend: vacuum(
        backend.open(), VacuumRequest(retention=0, allow_short_retention=True, guard=ASIDE)
    ),
    "lite": lambda backend: vacuum(backend.open(), VacuumRequest(retention=0, allow_short_retention=True, lite=True)),
    "empty": lambda backend: vacuum(
        backend.open(),
        VacuumRequest(retention=0, allow_short_retention=True, guard=VacuumGuard(1, quarantine_retention=0)),
    ),
    "undelete": lambda backend: undelete(backend.open()),
    "restore": lambda backend: restore(backend.open(), version=backend.open().version() - 1),
    "checkpoint": lambda backend: checkpoint(backend.open(), clean_log=True),
    "manifest": lambda backend: write_manifests(backend.open(), backend.engine(), purge_first=True),
}


def _contents(folder: Path) -> dict[Path, bytes | None]:
    """Of a folder, or of a file."""
    return {path: path.read_bytes() if path.is_file() else None for path in (folder, *folder.rglob("*"))}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tables with files in quarantine, others that are unneeded, manifests and a checkpoint where there are such."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            place = made[kind] = tmp_path_factory.mktemp(kind) / "table"
            backend = purged(kind, place)
            backend.moment()
            VERBS["aside"](backend)
            backend.delete([2])
            purge(backend.open(), backend.engine())
            if kind == "delta":
                VERBS["manifest"](backend)
                VERBS["checkpoint"](backend)
            backend.delete([3])
            backend.moment()
        return made[kind]

    return make


# What may be a link, and the verbs that are refused then. Other verbs pass the link by, or replace the link itself.
_ALL, _MOVING = ("aside", "lite", "empty", "undelete"), ("aside", "empty", "undelete")
_LOG = ("aside", "lite", "empty", "restore", "checkpoint", "manifest")
_ASIDE = {"_dvm_quarantine": _MOVING, "_dvm_quarantine/*": ()}
LINKS: dict[str, dict[str, tuple[str, ...]]] = {
    "delta": {
        "_delta_log": _LOG,
        "_delta_log/_last_checkpoint": (),
        "p=a": ("undelete", "manifest"),
        "p=a/*.parquet": (),
        "_symlink_format_manifest": ("manifest",),
        "_symlink_format_manifest/p=a": ("manifest",),
        "_symlink_format_manifest/p=a/manifest": (),
        "_dvm_quarantine/*/p=a": (),
        "_dvm_quarantine/*/p=a/*.parquet": (),
        **_ASIDE,
    },
    "lance": {
        **dict.fromkeys(("data", "_versions", "_deletions"), _ALL),
        "data/*.lance": (),
        "_dvm_quarantine/*/data": (),
        "_dvm_quarantine/*/data/*.lance": (),
        **_ASIDE,
    },
    "paimon": {
        "snapshot": _ALL,
        "snapshot/EARLIEST": (),
        "manifest": _MOVING,
        "p=a": ("undelete",),
        "p=a/bucket-0": ("undelete",),
        "p=a/bucket-0/*.parquet": (),
        "_dvm_quarantine/*/p=a": (),
        "_dvm_quarantine/*/p=a/bucket-0/*.parquet": (),
        **_ASIDE,
    },
}
QUICK = {
    ("delta", "restore", "_delta_log"),
    ("delta", "checkpoint", "_delta_log"),
    ("delta", "checkpoint", "_delta_log/_last_checkpoint"),
    ("delta", "undelete", "p=a"),
    ("delta", "lite", "p=a"),
    ("delta", "manifest", "_symlink_format_manifest/p=a"),
    *((kind, verb, "_dvm_quarantine") for kind in BACKENDS for verb in ("aside", "undelete")),
}
CASES = [
    (kind, verb, link)
    for kind, links in LINKS.items()
    for link in links
    for verb in (VERBS if kind == "delta" else _ALL)
]


@pytest.mark.parametrize(
    ("kind", "verb", "link"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.deep) for case in CASES]
)
def test_verbs_do_not_follow_links(
    tmp_path: Path, templates: Callable[[str], Path], kind: str, verb: str, link: str
) -> None:
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    shutil.copytree(templates(kind), place)
    backend = BACKENDS[kind][0](str(place))
    rows = sorted(backend.rows())
    linked = min(place.glob(link))
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    before = _contents(elsewhere)
    if verb in LINKS[kind][link]:
        with pytest.raises(RefusedError, match=f"through {re.escape(str(linked))}, which is a link"):
            VERBS[verb](backend)
        assert linked.is_symlink()
    else:
        VERBS[verb](backend)
    assert _contents(elsewhere) == before
    if verb != "restore":
        assert sorted(backend.rows()) == rows


def test_no_table_is_made_beyond_a_link(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (place, elsewhere):
        folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), place / "a.parquet")
    (place / "_delta_log").symlink_to(elsewhere)
    with pytest.raises(RefusedError, match=f"through {re.escape(str(place))}/_delta_log, which is a link"):
        convert(DeltaTable(Storage(str(place))))
    assert list(elsewhere.iterdir()) == []


def test_a_linked_folder_is_not_left_out_of_a_conversion(tmp_path: Path) -> None:
    """Spark reads its rows."""
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (place / "p=a", elsewhere):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), folder / "a.parquet")
    (place / "p=b").symlink_to(elsewhere)
    (place / "README").symlink_to(elsewhere / "a.parquet")
    table = DeltaTable(Storage(str(place)))
    with pytest.raises(RefusedError, match="p=b is a link to a folder that holds files"):
        convert(table, {"p": pa.string()})
    assert not (place / "_delta_log").exists()
    (place / "p=b").unlink()
    assert convert(table, {"p": pa.string()}).ignored == 1


@pytest.mark.parametrize("kind", ["delta", "paimon"])
def test_a_link_in_quarantine_is_not_restored(tmp_path: Path, templates: Callable[[str], Path], kind: str) -> None:
    place = tmp_path / "table"
    shutil.copytree(templates(kind), place)
    (batch,) = (place / "_dvm_quarantine").iterdir()
    (tmp_path / "elsewhere").mkdir()
    (batch / "p=b").symlink_to(tmp_path / "elsewhere")
    result = undelete(BACKENDS[kind][0](str(place)).open())
    assert result.held["a link to a folder"] == 1
    assert not (place / "p=b").is_symlink()
