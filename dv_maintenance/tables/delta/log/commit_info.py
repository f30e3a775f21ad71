"""The facts a commit records about itself: operation, time, writer, and whether it changed the result of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dv_maintenance import __version__
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.segment import CommitFile

_NAME: Final = "dv-maintenance/"
ENGINE: Final = f"{_NAME}{__version__}"
"""``engineInfo`` of the commits of this package."""

# Operations that write metadata but change neither schema nor rows.
_HARMLESS_METADATA: Final = frozenset(
    {
        "ADD CONSTRAINT",
        "CLUSTER BY",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
    }
)


def commit_info(actions: Iterable[Action]) -> Mapping[str, Any]:
    """The body of the commit's ``commitInfo``; empty without one."""
    return next((mapping(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def bodies(actions: Iterable[Action], kind: str) -> list[Mapping[str, Any]]:
    return [mapping(action[kind]) for action in actions if kind in action]


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def operation_of(info: Mapping[str, Any]) -> str:
    operation = info.get("operation")
    return operation if isinstance(operation, str) else "UNKNOWN"


def commit_time(file: CommitFile, info: Mapping[str, Any]) -> int:
    """The in-commit timestamp, otherwise the modification time of the commit file, in epoch milliseconds."""
    in_commit = info.get("inCommitTimestamp")
    return in_commit if type(in_commit) is int else file.modified


def data_changed(actions: Sequence[Action]) -> bool:
    """Whether the commit adds or removes a file with ``dataChange``, or writes metadata that may alter the schema."""
    if any(body.get("dataChange") is not False for kind in ("add", "remove") for body in bodies(actions, kind)):
        return True
    return bool(bodies(actions, "metaData")) and operation_of(commit_info(actions)) not in _HARMLESS_METADATA


def is_ours(info: Mapping[str, Any]) -> bool:
    """Whether this package, in any version, wrote the commit."""
    engine = info.get("engineInfo")
    return isinstance(engine, str) and engine.startswith(_NAME)
