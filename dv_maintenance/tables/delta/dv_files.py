"""New deletion vectors of a commit: small ones inside the log, the others packed into as few files as may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.dv import DeletionVector, DvDescriptor, delta

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["Placed", "place"]

# Bytes of a DV that a log may carry itself. Each reader of the log pays for them, each scan is spared a request.
_INLINE: Final = 200


@dataclass(frozen=True, slots=True)
class Placed:
    """``descriptors`` in the order of the DVs; ``paths`` of the files written for them, relative to the table."""

    descriptors: tuple[DvDescriptor, ...] = ()
    paths: tuple[str, ...] = ()


def place(storage: Storage, dvs: Sequence[DeletionVector]) -> Placed:
    """Write what does not go into the log. Until a commit names the files, nobody needs them.

    Raises
    ------
    ValueError : a DV is empty; see ``dv.delta.pack``.
    StorageError : what was written stays for vacuum.
    """
    descriptors = [delta.inline(dv) if _is_small(dv) else None for dv in dvs]
    packed = delta.pack(dv for dv, done in zip(dvs, descriptors, strict=True) if done is None)
    for file in packed:
        storage.create(file.path, file.data)
    of_files = (descriptor for file in packed for descriptor in file.descriptors)
    return Placed(
        tuple(done if done is not None else next(of_files) for done in descriptors),
        tuple(file.path for file in packed),
    )


def _is_small(dv: DeletionVector) -> bool:
    # Two bytes a position at least, unless they come in runs.
    return bool(dv) and len(dv) <= _INLINE // 2 and len(delta.serialize(dv)) <= _INLINE
