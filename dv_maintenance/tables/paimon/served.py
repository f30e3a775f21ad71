"""Tables of a REST catalog: its server makes the snapshots that clients commit.

Source: Paimon's REST API, ``commitSnapshot`` in ``rest-catalog-open-api.yaml``. A request also says what partitions
gain and lose, since the server keeps statistics of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from dv_maintenance.storage import Storage
from dv_maintenance.tables.paimon.log.manifests import ADD

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.entries import Entry
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot


@dataclass(frozen=True, slots=True)
class ServedTable:
    """The handle of such a table. See ``registry.CatalogTable``.

    name : as users write it, with the catalog.
    identity : the id that the server gave it.
    submit : asks the server for a snapshot, given its content and :func:`statistics`; whether it made one.

        Raises StorageDeniedError if none was made, StorageUnavailableError if that is unknown.
    hides : what the server hides of these columns from the user, "" for nothing. Asked if ``query-auth.enabled``.

        Raises StorageDeniedError if the user may not read them.
    branches : names of the branches that the server knows.
    snapshots : the snapshots and tags of a branch, ``None`` for the main one, by their names in its folder.
    consumers : the snapshot that each consumer of a branch reads next.

        These three raise RefusedError if the server does not say.
    """

    name: str
    identity: str
    submit: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], bool] = field(repr=False, compare=False)
    hides: Callable[[Sequence[str]], str] = field(repr=False, compare=False)
    branches: Callable[[], Sequence[str]] = field(repr=False, compare=False)
    snapshots: Callable[[str | None], Mapping[str, Mapping[str, Any]]] = field(repr=False, compare=False)
    consumers: Callable[[str | None], Mapping[str, int]] = field(repr=False, compare=False)


class Target(NamedTuple):
    """What a commit goes to.

    place : the folder of the table or of the branch.
    server : ``None`` if a snapshot is a file that its writer creates.
    """

    place: Storage
    server: ServedTable | None = None


def statistics(snapshot: PaimonSnapshot, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """What the changed partitions gain, or lose, as the server adds it up. ``snapshot``: the one that is built on."""
    folders = {each.row: each.folder for each in snapshot.partitions}
    found: dict[bytes, list[int]] = {}
    for each in entries:
        file, sign = each.file, 1 if each.record["_KIND"] == ADD else -1
        rows, size, files, _, created = found.get(each.record["_PARTITION"], [0] * 5)
        found[each.record["_PARTITION"]] = [
            rows + sign * file["_ROW_COUNT"],
            size + sign * file["_FILE_SIZE"],
            files + sign,
            each.record["_TOTAL_BUCKETS"],
            max(created, file["_CREATION_TIME"] or 0),
        ]
    return [{"spec": _spec(folders[row]), **dict(zip(_FIELDS, sums, strict=True))} for row, sums in found.items()]


_FIELDS: Final = ("recordCount", "fileSizeInBytes", "fileCount", "totalBuckets", "lastFileCreationTime")


def _spec(folder: str) -> dict[str, str]:
    parts = (part.partition("=") for part in folder.split("/") if part)
    return {unquote(name): unquote(value) for name, _, value in parts}
