"""The runs that the due work needs, and the key of each request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dv_maintenance.errors import UsageError
from dv_maintenance.service.tables_file import Job

if TYPE_CHECKING:
    from dv_maintenance.service.inspection import Inspection

SHARED_BY: Final = 50
"""Tables at most that one run vacuums. What starting a run costs is then little for each of them."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One requested run, to and from JSON.

    ``table`` : its name in the tables file.
    ``jobs`` : what the run does, in this order.
    ``version`` : the table version that made it due.
    ``partitions`` : first and last key of the range to optimize; ``None``: the whole table.
    ``vacuum_checked`` : epoch milliseconds of the search that found expired files; 0 in a run without a vacuum.
    ``failed`` : earlier runs of the same work that failed.
    ``settings`` : fingerprint of the policy, the jobs and this release: under other ones it is other work.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    table: str
    jobs: tuple[Job, ...]
    version: int | None
    partitions: tuple[str, str] | None = None
    vacuum_checked: int = 0
    failed: int = 0
    settings: str = ""

    @property
    def key(self) -> str:
        """The same key for the same work. An orchestrator starts no second run of a key. A failed run must therefore
        change it, and so must time, which makes a vacuum due again without a new version.
        """
        parts = [self.table, self.version, "+".join(self.jobs), self.vacuum_checked, self.failed, self.settings]
        return ":".join(map(str, [*parts, *(self.partitions or ())]))

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = TypeAdapter(RunRequest).dump_python(self, mode="json")
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RunRequest:
        """Raises UsageError."""
        import orjson

        try:
            return TypeAdapter(cls).validate_json(orjson.dumps(body))
        except (ValidationError, TypeError) as error:
            raise UsageError(
                "this is not a request for a run", next_step="pass on what the service returned"
            ) from error


def together(requests: Sequence[RunRequest], most: int = SHARED_BY) -> list[tuple[RunRequest, ...]]:
    """The requests by the run that serves them, in order: vacuums share runs, everything else runs separately.

    So does a vacuum that failed before: if it ended the process, it would take the others with it again.
    """
    shared = [request for request in requests if request.jobs == ("vacuum",) and not request.failed]
    groups = {shared[at].table: tuple(shared[at : at + most]) for at in range(0, len(shared), most)}
    followers = {request.table for group in groups.values() for request in group[1:]}
    found: list[tuple[RunRequest, ...]] = []
    for request in requests:
        if request not in shared:
            found.append((request,))
        elif request.table not in followers:
            found.append(groups[request.table])
    return found


def without_rewrites(requests: Iterable[RunRequest]) -> list[RunRequest]:
    """What is left of the requests if rewrites wait for a window."""
    rest = ((request, tuple(job for job in request.jobs if job != "optimize")) for request in requests)
    return [replace(request, jobs=jobs, partitions=None) for request, jobs in rest if jobs]


def key_of(group: Sequence[RunRequest]) -> str:
    """The key of a run that serves these requests: the same for the same work."""
    if len(group) == 1:
        return group[0].key
    return "+".join(["vacuums", sha256("\n".join(sorted(each.key for each in group)).encode()).hexdigest()[:32]])


def runs_of(inspection: Inspection, last_vacuum: int | None = None) -> list[RunRequest]:
    """The runs that the due work needs, in order.

    A vacuum runs separately: a rewrite that fails, or crashes the process, does not prevent it.

    last_vacuum : end of the last vacuum, epoch milliseconds. In some formats a vacuum creates no version.
    """
    checked = inspection.vacuum_checked or 0
    vacuumed = last_vacuum is not None and last_vacuum > checked
    name, version, settings = inspection.name, inspection.version, inspection.settings
    runs = []
    if "vacuum" in inspection.due and not vacuumed:
        runs.append(RunRequest(name, ("vacuum",), version, vacuum_checked=checked, settings=settings))
    rest: Sequence[Job] = [job for job in inspection.due if job != "vacuum"]
    if rest:
        runs.append(RunRequest(name, tuple(rest), version, settings=settings))
    return runs
