"""Whether the files that a commit names exist: data files and files of deletion vectors (DVs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.storage import RawName
from dv_maintenance.tables.delta.rows.tasks import dv_ref
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.units import first_few

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.commit.live_file import LiveFile

_SHOWN: Final = 5
_DV_FRAME: Final = 8  # bytes around a bitmap in its file: size word and checksum


@dataclass(frozen=True, slots=True)
class Presence:
    """Which of a commit's files the storage holds.

    missing : paths that do not exist.
    wrong : paths whose size differs from the log's, with the explanation.
    oldest : earliest modification time of the files that exist, epoch milliseconds; ``None`` if none exists.
    """

    missing: tuple[str, ...]
    wrong: Mapping[str, str]
    oldest: int | None

    @property
    def unusable(self) -> tuple[str, ...]:
        return (*self.missing, *self.wrong)


def presence_of(storage: Storage, files: Iterable[LiveFile], *, data: bool = True) -> Presence:
    """Check the files of these logical files; without ``data``, only their DV files. Raises StorageError."""
    # Path -> size in bytes: exact for data files, a minimum for DV files. Many DVs share a file.
    exact: dict[str, int] = {}
    least: dict[str, int] = {}
    for file in files:
        if data:
            exact[storage.path_of(RawName(file.path))] = file.size
        ref = None if file.dv is None else dv_ref(storage, file.dv)
        if ref is not None and ref.uri is not None:
            path = storage.path_of_uri(ref.uri)
            least[path] = max(least.get(path, 0), (ref.offset or 0) + ref.size + _DV_FRAME)
    paths = [*exact, *(path for path in least if path not in exact)]
    found = dict(zip(paths, in_parallel(storage, paths, storage.info), strict=True))
    wrong = {
        path: f"{path} has {info.size} bytes, but the log says {'' if path in exact else 'at least '}"
        f"{exact.get(path, least.get(path))}"
        for path, info in found.items()
        if info is not None and (info.size != exact[path] if path in exact else info.size < least[path])
    }
    return Presence(
        tuple(path for path, info in found.items() if info is None),
        wrong,
        min((info.modified for info in found.values() if info is not None), default=None),
    )


def listed(paths: Iterable[str]) -> str:
    """The first few paths, as text for messages."""
    return first_few([*paths], _SHOWN)
