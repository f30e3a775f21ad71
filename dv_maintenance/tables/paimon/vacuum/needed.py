"""The files that snapshots, tags and changelogs need, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import int64s, strings
from dv_maintenance.tables.paimon.vacuum.references import Ids, ReferencedFiles, ReferenceReader
from dv_maintenance.tables.paimon.vacuum.retained import Ref

__all__ = ["Names", "Needed"]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of all needed files.

    names : names of the files, possibly repeated, sorted by ``codes``.
    codes : of each name, the position of its reason in ``whys``.
    whys : reasons, in the order in which they were first added.
    """

    names: pa.StringArray
    codes: pa.Int64Array
    whys: tuple[str, ...]

    def codes_of(self, names: pa.StringArray) -> pa.Int64Array:
        """For each name, the position in ``whys`` of the reason why it is needed; null if it is not needed."""
        return self.codes.take(pc.index_in(names, value_set=self.names))

    def count(self, names: pa.StringArray | None = None) -> dict[str, int]:
        """Reason -> how many of the names are needed for it; by default, of all needed names."""
        codes = self.codes_of(pc.unique(self.names) if names is None else names)
        counts = pc.value_counts(codes.drop_null()).to_pylist()
        return {self.whys[each["values"]]: each["counts"] for each in counts}


@dataclass(slots=True)
class Needed:
    """The needed files. The set only grows.

    codes : number of a data file -> position of its reason in ``whys``; 0 if it is not needed.
    named : name of any other file -> reason.
    added : references already added, identified by the files that they name.
    """

    reader: ReferenceReader
    codes: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    whys: list[str] = field(default_factory=lambda: [""])
    named: dict[str, str] = field(default_factory=dict)
    added: set[tuple[str | bool | None, ...]] = field(default_factory=set)

    def add(self, refs: Iterable[tuple[Ref, str]]) -> None:
        """Add the files that references need. The first reason of a file counts.

        Raises
        ------
        MissingError, DamagedTableError, UnsupportedFeatureError, RefusedError : as ``ReferenceReader.resolve``.
        """
        new = [(ref, why) for ref, why in refs if _names(ref) not in self.added]
        for (ref, why), reached in zip(new, self.reader.resolve([ref for ref, _ in new]), strict=True):
            self._need(reached, self._code(why))
            for each in reached.named:
                self.named.setdefault(each.name, why)
            self.added.add(_names(ref))

    def without(self, ids: Ids) -> Ids:
        """Those of the data files, by number, that are not needed."""
        self._grow()
        found: Ids = ids[self.codes[ids] == 0]
        return found

    def names(self, others: Mapping[str, str]) -> Names:
        """Names and reasons of all needed files.

        others : further name -> reason.
        """
        self._grow()
        ids = np.flatnonzero(self.codes)
        extra = [(name, int(self.codes[number])) for number, name in self.reader.extras() if self.codes[number]]
        named = {**self.named, **others}
        names = [self.reader.names(ids), strings([name for name, _ in extra]), strings(list(named))]
        codes = [*self.codes[ids].tolist(), *(code for _, code in extra), *map(self._code, named.values())]
        # A file that changed its level has two numbers. Sorting decides which of them is found.
        order = pc.array_sort_indices(int64s(codes))
        return Names(pa.concat_arrays(names).take(order), int64s(codes).take(order), tuple(self.whys))

    def _need(self, reached: ReferencedFiles, code: int) -> None:
        for ids in (reached.data, reached.changes):
            new = self.without(ids)
            self.codes[new] = code

    def _code(self, why: str) -> int:
        if why not in self.whys:
            self.whys.append(why)
        return self.whys.index(why)

    def _grow(self) -> None:
        missing = len(self.reader) - len(self.codes)
        if missing:
            self.codes = np.pad(self.codes, (0, missing))


def _names(ref: Ref) -> tuple[str | bool | None, ...]:
    # A changelog names the same files as its snapshot, but needs fewer of them.
    return ref.is_changelog, ref.deltas, ref.base, ref.delta, ref.changelog, ref.index, ref.statistics
