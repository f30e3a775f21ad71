"""What must stay, and why: everything that some snapshot, tag or changelog needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import int64s, strings
from dv_maintenance.tables.paimon.vacuum.references import Ids, Reach, Reached
from dv_maintenance.tables.paimon.vacuum.retained import Ref

__all__ = ["Names", "Needed"]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of all files that are needed, each perhaps more than once, the most telling reason first."""

    names: pa.StringArray
    codes: pa.Int64Array
    whys: tuple[str, ...]

    def codes_of(self, names: pa.StringArray) -> pa.Int64Array:
        """The place in ``whys`` of the reason why each of the names is needed; null where none is."""
        return self.codes.take(pc.index_in(names, value_set=self.names))

    def count(self, names: pa.StringArray | None = None) -> dict[str, int]:
        """How many of the names, or of all there are, are needed for which reason."""
        codes = self.codes_of(pc.unique(self.names) if names is None else names)
        counts = pc.value_counts(codes.drop_null()).to_pylist()
        return {self.whys[each["values"]]: each["counts"] for each in counts}


@dataclass(slots=True)
class Needed:
    """Only grows: what was once found to be needed stays. ``codes``: by number of a data file, why it is, as a place in
    ``whys``; 0 if it is not. ``named``: the same of all other files by name. ``taken``: what is in them, by the names
    of lists and the like that a snapshot has.
    """

    reach: Reach
    codes: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    whys: list[str] = field(default_factory=lambda: [""])
    named: dict[str, str] = field(default_factory=dict)
    taken: set[tuple[str | bool | None, ...]] = field(default_factory=set)

    def take_in(self, refs: Iterable[tuple[Ref, str]]) -> None:
        """What these need, and why; reasons that come first count. Raises as ``Reach.reached``."""
        new = [(ref, why) for ref, why in refs if _names(ref) not in self.taken]
        for (ref, why), reached in zip(new, self.reach.reached([ref for ref, _ in new]), strict=True):
            self._need(reached, self._code(why))
            for each in reached.named:
                self.named.setdefault(each.name, why)
            self.taken.add(_names(ref))

    def without(self, ids: Ids) -> Ids:
        """Those of the data files that are not needed, by number."""
        self._grow()
        found: Ids = ids[self.codes[ids] == 0]
        return found

    def names(self, others: Mapping[str, str]) -> Names:
        """``others``: more names, and why they are needed."""
        self._grow()
        ids = np.flatnonzero(self.codes)
        extra = [(name, int(self.codes[number])) for number, name in self.reach.extras() if self.codes[number]]
        named = {**self.named, **others}
        names = [self.reach.names(ids), strings([name for name, _ in extra]), strings(list(named))]
        codes = [*self.codes[ids].tolist(), *(code for _, code in extra), *map(self._code, named.values())]
        # A file that changed its level has two numbers: which of the two is found must not be chance.
        order = pc.array_sort_indices(int64s(codes))
        return Names(pa.concat_arrays(names).take(order), int64s(codes).take(order), tuple(self.whys))

    def _need(self, reached: Reached, code: int) -> None:
        for ids in (reached.data, reached.changes):
            new = self.without(ids)
            self.codes[new] = code

    def _code(self, why: str) -> int:
        if why not in self.whys:
            self.whys.append(why)
        return self.whys.index(why)

    def _grow(self) -> None:
        missing = len(self.reach) - len(self.codes)
        if missing:
            self.codes = np.pad(self.codes, (0, missing))


def _names(ref: Ref) -> tuple[str | bool | None, ...]:
    # A changelog names what its snapshot did, and needs less of it.
    return ref.rest, ref.deltas, ref.base, ref.delta, ref.changelog, ref.index, ref.statistics
