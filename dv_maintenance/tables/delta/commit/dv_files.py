"""New deletion vectors of a commit: small ones inline in the log, larger ones packed into as few files as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dv_maintenance.dv import DeletionVector, DvDescriptor, delta
from dv_maintenance.errors import ConflictError, RefusedError, StorageError

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

# Largest DV, in bytes, that is stored inline in the log. Each one costs every reader of the log some bytes, and saves
# every scan a request.
_INLINE: Final = 200


@dataclass(frozen=True, slots=True)
class _Placed:
    """``descriptors`` in the order of the DVs; ``paths`` of the files written for them, relative to the table."""

    descriptors: tuple[DvDescriptor, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class CommitDvs:
    """DVs of one commit; each attempt may need others. ``keep``: whether the last attempt's files may be needed."""

    storage: Storage
    keep: bool = True
    _wanted: tuple[DeletionVector, ...] = ()
    _placed: _Placed = field(default_factory=_Placed)  # of _wanted
    _begun: list[str] = field(default_factory=list)  # every file that may exist by now

    def place(self, dvs: tuple[DeletionVector, ...]) -> tuple[DvDescriptor, ...]:
        """Write the DVs that are too large for the log; the same DVs only once. Until a commit names them, nobody needs
        the files.

        Raises
        ------
        ValueError : a DV is empty; see ``dv.delta.pack``.
        StorageError : a file could not be written; the next call writes all of them, under other names.
        """
        if dvs != self._wanted:
            placed = self._write(dvs)
            # Only written DVs are remembered: a failed call must be tried again.
            self._wanted, self._placed = dvs, placed
        return self._placed.descriptors

    def _write(self, dvs: Sequence[DeletionVector]) -> _Placed:
        descriptors = [delta.inline(dv) if _is_small(dv) else None for dv in dvs]
        packed = delta.pack(dv for dv, done in zip(dvs, descriptors, strict=True) if done is None)
        for file in packed:
            self._begun.append(file.path)
            # No put-if-absent: the name is random, and a client that repeats a put after a lost answer would find its
            # own file in the way.
            self.storage.put(file.path, file.data)
        of_files = (descriptor for file in packed for descriptor in file.descriptors)
        return _Placed(
            tuple(done if done is not None else next(of_files) for done in descriptors),
            tuple(file.path for file in packed),
        )

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        """Wrap publishing, and afterwards delete the DV files that certainly no commit names."""
        try:
            yield
        except (ConflictError, RefusedError):
            self.keep = False
            raise
        finally:
            needed = self._placed.paths if self.keep else ()
            unused = [path for path in self._begun if path not in needed]
            if unused:
                with suppress(StorageError):  # a vacuum deletes files that stay
                    self.storage.delete(unused)


def _is_small(dv: DeletionVector) -> bool:
    # A position takes at least two bytes, except in runs.
    return bool(dv) and len(dv) <= _INLINE // 2 and len(delta.serialize(dv)) <= _INLINE
