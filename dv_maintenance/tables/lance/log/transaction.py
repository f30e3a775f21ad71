"""The transaction of a commit: inside the manifest, or in a file under ``_transactions``.

Format: Lance's transaction.proto. Its field numbers identify the operations. Only the parts that a history shows
are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.protobuf import BYTES, INTS, VARINT, Message, Shape, parse, text
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.log.manifest import Manifest

TRANSACTIONS: Final = "_transactions"
OPERATION: Final = "dvm.operation"
PARAMETERS: Final = "dvm.parameters"
"""Properties of the transactions of this package: the operation's name, and its parameters as JSON."""

_FILE: Final = re.compile(r"[0-9]{1,20}-[0-9A-Za-z-]{1,64}\.txn")

# Field number -> the operation's name, and whether it changes what a query returns.
_OPERATIONS: Final[Mapping[int, tuple[str, bool]]] = {
    100: ("Append", True),
    101: ("Delete", True),
    102: ("Overwrite", True),
    103: ("CreateIndex", False),
    104: ("Rewrite", False),
    105: ("Merge", True),
    106: ("Restore", True),
    107: ("ReserveFragments", False),
    108: ("Update", True),
    109: ("Project", True),
    110: ("UpdateConfig", False),
    111: ("DataReplacement", True),
    112: ("UpdateMemWalState", False),
    113: ("Clone", True),
    114: ("UpdateBases", False),
    115: ("DataOverlay", True),
    116: ("AppendFragmentReuseTransitions", False),
}
_TRANSACTION: Final[Shape] = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES} | dict.fromkeys(_OPERATIONS, BYTES)
_DELETE: Final[Shape] = {1: BYTES, 2: INTS, 3: BYTES}
_UPDATE: Final[Shape] = {1: INTS, 2: BYTES, 3: BYTES}
_RESTORE: Final[Shape] = {1: VARINT}
_CLONE: Final[Shape] = {1: VARINT, 2: BYTES, 3: VARINT, 4: BYTES, 5: BYTES}
_REWRITE: Final[Shape] = {1: BYTES, 2: BYTES, 3: BYTES}
_GROUP: Final[Shape] = {1: BYTES, 2: BYTES}


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a commit did.

    operation : Lance's own name; UNKNOWN for an operation of a newer Lance.
    read_version : the version that the commit is based on.
    data_changed : whether a query may return a different result than before; ``None`` if the transaction does not show
        it.
    properties : set by the writer, such as a message.
    """

    operation: str
    read_version: int
    data_changed: bool | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def read_transaction(storage: Storage, manifest: Manifest) -> Transaction | None:
    """The transaction that made a version; ``None`` if it is gone or damaged. Only the history needs it."""
    if manifest.transaction is not None:
        try:
            return parse_transaction(manifest.transaction)
        except DamagedTableError:
            pass
    if not _FILE.fullmatch(manifest.transaction_file):
        return None
    try:
        return parse_transaction(storage.get(f"{TRANSACTIONS}/{manifest.transaction_file}"))
    except (FileNotFoundError, DamagedTableError):
        return None


def parse_transaction(data: bytes) -> Transaction:
    """Parse a Transaction message. Raises DamagedTableError."""
    body = parse(data, _TRANSACTION)
    number = next((number for number in _OPERATIONS if body.has(number)), None)
    properties = {key: text(value) for key, value in body.mapping(4).items()}
    if number is None:
        return Transaction("UNKNOWN", body.uint(1), None, properties=properties)
    name, changes = _OPERATIONS[number]
    parameters, touched = _parameters(name, body, number)
    return Transaction(name, body.uint(1), changes and touched, parameters, properties)


def _parameters(name: str, body: Message, number: int) -> tuple[dict[str, Any], bool]:
    """What a history shows of an operation, and whether it touched anything: a delete or an update may find no row."""
    if name == "Delete":
        delete = body.message(number, _DELETE) or Message({})
        return {"predicate": delete.text(3)}, bool(delete.each(1) or delete.ints(2))
    if name == "Update":
        update = body.message(number, _UPDATE) or Message({})
        return {}, bool(update.ints(1) or update.each(2) or update.each(3))
    if name == "Restore":
        restore = body.message(number, _RESTORE) or Message({})
        return {"version": restore.uint(1)}, True
    if name == "Clone":
        clone = body.message(number, _CLONE) or Message({})
        return {"source": clone.text(4), "version": clone.uint(3), "shallow": bool(clone.uint(1))}, True
    if name == "Rewrite":
        rewrite = body.message(number, _REWRITE) or Message({})
        groups = [parse(group, _GROUP) for group in rewrite.each(3)]
        olds = len(rewrite.each(1)) + sum(len(group.each(1)) for group in groups)
        return {"groups": len(groups), "fragments": olds}, True
    return {}, True
