"""The descriptor of a deletion vector in a Delta log: where its bytes are.

Protocol: Deletion Vector Descriptor Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dv_maintenance.dv import z85
from dv_maintenance.errors import DamagedDeletionVectorError

MAX_SIZE = 2**31 - 1
"""Offsets and sizes are signed 32-bit integers in bytes."""
_MAX_CARDINALITY = 2**63 - 1
_UUID_TEXT = 20  # Z85 characters of 16 bytes


@dataclass(frozen=True, slots=True)
class DvDescriptor:
    """``storage_type``: ``u`` (file below the table, named by a UUID), ``p`` (absolute URI) or ``i`` (inline).

    ``path_or_inline`` is the log's own text, the identity of the DV: written back as it was read. ``offset`` points
    at the size word in front of the bitmap; ``None`` where the log has none, which is another identity than 0.
    ``size_in_bytes`` counts the bitmap with its magic, without the size word and the checksum.
    """

    storage_type: str
    path_or_inline: str
    offset: int | None
    size_in_bytes: int
    cardinality: int

    @property
    def unique_id(self) -> str:
        """The DV's part of a logical file's key. Protocol: Derived Fields."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline}{at}"

    def relative_path(self) -> str:
        """The file of a ``u`` descriptor, decoded and relative to the table's root.

        Raises
        ------
        DamagedDeletionVectorError : the text names no UUID, or a folder outside the table.
        """
        prefix, text = self.path_or_inline[:-_UUID_TEXT], self.path_or_inline[-_UUID_TEXT:]
        try:
            if len(text) < _UUID_TEXT:
                raise DamagedDeletionVectorError(f"{len(text)} characters are too few for a UUID")
            uuid = UUID(bytes=z85.decode(text))
        except DamagedDeletionVectorError as error:
            raise DamagedDeletionVectorError(error.reason, file=self.path_or_inline, offset=self.offset) from None
        if prefix.startswith("/") or ".." in prefix.split("/"):
            raise DamagedDeletionVectorError(
                "the prefix leaves the table's folder", file=self.path_or_inline, offset=self.offset
            )
        return dv_file_path(prefix, uuid)

    def to_json(self) -> dict[str, Any]:
        """The log's own form: an absent offset stays absent."""
        body: dict[str, Any] = {"storageType": self.storage_type, "pathOrInlineDv": self.path_or_inline}
        if self.offset is not None:
            body["offset"] = self.offset
        return {**body, "sizeInBytes": self.size_in_bytes, "cardinality": self.cardinality}

    @classmethod
    def from_json(cls, body: Any) -> DvDescriptor:
        """Parse and validate the object of a log. ``maxRowIndex`` is ignored: it was never meant to be stored.

        Raises
        ------
        DamagedDeletionVectorError : something is missing, of the wrong type or out of range, or the storage type is
            not one of ``u``, ``p``, ``i``.
        """
        if not isinstance(body, Mapping):
            raise DamagedDeletionVectorError(f"the descriptor is {_shown(body)}, not an object")
        storage_type, path = body.get("storageType"), body.get("pathOrInlineDv")
        if not isinstance(path, str):
            raise DamagedDeletionVectorError(f"pathOrInlineDv is {_shown(path)}, not a string")
        file = None if storage_type == "i" else path
        if storage_type == "r":
            raise DamagedDeletionVectorError(
                "storage type 'r' belongs to the table feature adaptiveMetadata, which is not supported", file=file
            )
        if storage_type not in ("u", "p", "i"):  # a tuple: what a log says may not be hashable
            raise DamagedDeletionVectorError(f"unknown storage type {_shown(storage_type)}", file=file)
        offset = body.get("offset")
        return cls(
            storage_type,
            path,
            None if offset is None else _integer("offset", offset, MAX_SIZE, file),
            _integer("sizeInBytes", body.get("sizeInBytes"), MAX_SIZE, file),
            _integer("cardinality", body.get("cardinality"), _MAX_CARDINALITY, file),
        )


EMPTY = DvDescriptor("i", "", None, 0, 0)
"""The descriptor of an empty DV. Writers omit it; readers must accept it."""


def dv_file_path(prefix: str, uuid: UUID) -> str:
    """The path of a DV file relative to the table's root. ``prefix`` is its folder, or empty."""
    name = f"deletion_vector_{uuid}.bin"
    return f"{prefix}/{name}" if prefix else name


def _integer(name: str, value: Any, largest: int, file: str | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DamagedDeletionVectorError(f"{name} is {_shown(value)}, not an integer", file=file)
    if not 0 <= value <= largest:
        raise DamagedDeletionVectorError(f"{name} is {value}, outside 0..{largest}", file=file)
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
