"""What vacuums of all formats decide by: needed files with their holders, live files of manifests, and the rest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.storage import FileInfo
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.reach.manifests import Ids, ManifestFiles, live, mentioned
from dv_maintenance.tables.reach.needed import Holder, Needed, pinned
from dv_maintenance.tables.reach.retention import applied_retention
from dv_maintenance.tables.reach.unneeded import KnownFile, divided, unneeded

DAY = 86_400_000


def test_the_first_holder_counts() -> None:
    needed = Needed()
    needed.add(["a", "b"], "current", until=3)
    needed.add(["b", "c"], "tagged")
    needed.add(["c", "d"], "of a clone", anywhere=True)
    assert [needed.holder(key) for key in ("a", "b")] == [Holder("current", 3)] * 2
    assert [needed.why(key) for key in ("c", "x/c", "x/d", "x/a")] == ["tagged", "of a clone", "of a clone", None]
    assert list(needed) == ["a", "b", "c"]
    assert needed.count() == {"current": 2, "tagged": 1, "of a clone": 2}
    assert (pinned(3), pinned(4, "snapshot")) == (
        "in version 3, which is pinned",
        "in snapshot 4, which is pinned",
    )


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int64)


def test_a_file_is_live_while_more_entries_add_than_delete_it() -> None:
    base, delta = ManifestFiles(ids(0, 1, 2), ids()), ManifestFiles(ids(3), ids(1))
    assert live([base, delta], 5).tolist() == [0, 2, 3]
    assert live([], 5).tolist() == []
    assert mentioned([delta, ManifestFiles(ids(), ids(4))]).tolist() == [1, 3, 4]
    assert mentioned([]).tolist() == []


def test_a_file_of_many_deletion_vectors_is_live_while_one_of_them_is() -> None:
    three = ManifestFiles(ids(7, 7, 7), ids())
    assert live([three, ManifestFiles(ids(), ids(7, 7))], 8).tolist() == [7]
    assert live([three, ManifestFiles(ids(), ids(7, 7)), ManifestFiles(ids(), ids(7))], 8).tolist() == []


def test_what_is_needed_is_counted() -> None:
    kept = Counter({"old": 1})
    assert unneeded("abca", {"a": "live", "b": "old"}.get, kept) == ["c"]
    assert kept == {"live": 2, "old": 2}


def file(
    path: str, modified: int, kind: str | None = "data", key: str = "", sure: bool = True
) -> tuple[FileInfo, KnownFile]:
    return FileInfo(path, 5, modified), KnownFile(key or path, kind, sure)


def test_unneeded_files_expire_by_age_or_at_once_if_an_expired_version_named_them() -> None:
    files = [
        file("old", 9),
        file("young", 10),
        file("named", 99),
        file("foreign", 1, None),
        file("odd", 1, sure=False),
        file("odd but named", 99, sure=False),
        # Its sibling was written later.
        file("blob/1", 1, key="blob"),
        file("blob/2", 10, key="blob"),
    ]
    found = divided(files, 10, {"named", "odd but named", "foreign"})
    assert found.expired == [
        ExpiredFile("old", "data", 5, 9),
        *(ExpiredFile(n, "data", 5, 99) for n in ("named", "odd but named")),
    ]
    assert (found.young, found.foreign, found.unproven) == (3, 2, True)
    assert not divided([files[0], files[3]], 10).unproven


@pytest.mark.parametrize(("asked", "short", "kept_for"), [(None, False, 7), (7, False, 7), (9, False, 9), (0, True, 0)])
def test_the_retention(asked: int | None, short: bool, kept_for: int) -> None:
    assert applied(None if asked is None else asked * DAY, short) == kept_for * DAY


def test_a_shorter_retention_is_refused_with_what_helps() -> None:
    with pytest.raises(
        RefusedError, match=r"a retention of 6d is shorter than the table's own 7d \(p\): all is lost"
    ) as error:
        applied(6 * DAY)
    step = (
        "give at least retention='7d', lower p, or, if nothing else uses the table now, give allow_short_retention=True"
    )
    assert str(error.value.next_step) == step
    with pytest.raises(UsageError, match="is negative"):
        applied(-1, short=True)


def applied(asked: int | None, short: bool = False) -> int:
    return applied_retention(
        asked, 7 * DAY, allow_short=short, source="p", loses="all is lost", lower="p", table="t", version=3
    )
