"""A commit whose answer gets lost, or that a client repeats and then finds taken, is known as our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.storage import Storage
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.faults import Call, Fault
from dv_maintenance.testing.locations import Bucket, Folder, TableLocation
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import verbs_of

pytestmark = pytest.mark.usefixtures("quick")


class AtEachCommit:
    """A fault at each put-if-absent of a log entry; its last step on a local disk is a link."""

    def __init__(self, fault: Fault, folder: str) -> None:
        self.wanted, self.folder, self.happened = fault, folder, 0

    def fault(self, call: Call) -> Fault | None:
        if call.operation not in {"create", "link"} or self.folder not in call.path:
            return None
        self.happened += 1
        return self.wanted

    def done(self, call: Call) -> None:
        pass


BOTH = (Fault.LOSE_ANSWER, Fault.DUPLICATE)
# The verb, the commits that it takes, where they are put, and the faults that it gets over.
CASES: list[tuple[Callable[[str], TableBackend], str, int, str, tuple[Fault, ...]]] = [
    (DeltaBackend, "delete", 1, "_delta_log/", BOTH),
    (DeltaBackend, "vacuum", 2, "_delta_log/", BOTH),
    (DeltaBackend, "restore", 1, "_delta_log/", BOTH),
    # Whose very first answer is lost says that it is not known, and is run again.
    (DeltaBackend, "convert", 1, "_delta_log/", (Fault.DUPLICATE,)),
    (PaimonBackend, "delete", 1, "snapshot/", BOTH),
    (IcebergBackend, "delete", 1, ".metadata.json", BOTH),
    (IcebergBackend, "vacuum", 1, ".metadata.json", BOTH),
]
# One way of committing for each format by default; disks and buckets differ below it.
SHORT = {(DeltaBackend, "delete", True), (PaimonBackend, "delete", False)}


@pytest.mark.parametrize(
    ("make", "verb", "commits", "folder", "faults", "bucket"),
    [
        pytest.param(
            *case,
            bucket,
            id=f"{case[0].__name__}-{case[1]}-{'bucket' if bucket else 'disk'}",
            marks=() if (*case[:2], bucket) in SHORT else pytest.mark.deep,
        )
        for case in CASES
        for bucket in (False, True)
    ],
)
def test_an_own_commit_is_recognized(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[str], TableBackend],
    verb: str,
    commits: int,
    folder: str,
    faults: tuple[Fault, ...],
    bucket: bool,
) -> None:
    place: Path = tmp_path / "table"
    location: TableLocation = Folder(place)
    if bucket:
        location = Bucket()
        monkeypatch.setattr(Storage, "default_access", location)
    backend = make("s3://lake" if bucket else str(place))
    trial = Trial(backend, location, next(each for each in verbs_of(backend) if each.name == verb))
    before = -1 if trial.version is None else trial.version
    for fault in faults:
        script = AtEachCommit(fault, folder)
        after = trial.version_after(script)
        if make is not IcebergBackend:  # its versions have no numbers; a vacuum makes none
            assert after == before + commits, fault
        else:
            assert (after == before) == (verb == "vacuum"), fault
        assert script.happened == commits


def test_a_manifest_of_lance_that_is_there_under_its_new_name(tmp_path: Path) -> None:
    """Its commits are Lance's own library's; what we put there if absent is a manifest under another name."""
    backend = LanceBackend(str(tmp_path / "table"), enable_v2_manifest_paths=False)
    verb = next(each for each in verbs_of(backend) if each.name == "rename-manifests")
    trial = Trial(backend, Folder(tmp_path / "table"), verb)
    script = AtEachCommit(Fault.DUPLICATE, "_versions/")
    assert trial.version_after(script) == trial.version
    assert script.happened
