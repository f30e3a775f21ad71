"""The JSON actions of commits, read one by one; the newest action wins. The reference for ``bulk_tail``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol, Transaction, parse_domain, parse_transaction
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES, bulk_table, dv_id
from dv_maintenance.tables.delta.log.fingerprints import fingerprints


@dataclass(frozen=True, slots=True)
class Keys:
    """Logical files that commits touched: fingerprints of their paths, and their keys as ``path NUL dv_id``."""

    prints: Any
    keys: pa.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """The changes that commits make to the state before them.

    protocol, metadata : ``None`` if no commit sets it.
    domains : configuration by domain; ``None`` for a removed domain.
    adds, removes : the last action about each logical file that the commits name, with the requested columns.
    prints : fingerprints of the paths of ``adds``; ``None`` if ``adds`` has no paths.
    keys : all logical files that the commits name; ``None`` if there are none, or if keys were not requested.
    """

    protocol: Protocol | None
    metadata: Metadata | None
    domains: Mapping[str, str | None]
    transactions: Mapping[str, Transaction]
    adds: pa.Table
    removes: pa.Table
    prints: Any
    keys: Keys | None


def key_strings(path: pa.Array, ids: pa.Array) -> pa.Array:
    none, separator = strings([""])[0], strings(["\0"])[0]
    return pc.binary_join_element_wise(path, pc.coalesce(ids, none), separator)


@dataclass(slots=True)
class Tail:
    """The net effect of JSON actions, read oldest first."""

    table: str
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    domains: dict[str, str | None] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    # (path, DV id) -> kind of action, its body, and the log file that holds it.
    latest: dict[tuple[str, str | None], tuple[str, dict[str, Any], str]] = field(default_factory=dict)

    def read(self, actions: Sequence[dict[str, Any]], where: str) -> None:
        """Take in the actions of one file, which is newer than all files before it."""
        latest = self.latest
        for action in actions:
            ((kind, body),) = action.items()
            if kind == "add" or kind == "remove":
                # Most have a path and no DV.
                try:
                    path = body["path"]
                    plain = path.__class__ is str and path and body.get("deletionVector") is None
                except (KeyError, TypeError, AttributeError):
                    plain = False
                key = (path, None) if plain else self._key(kind, body, where)
                known = latest.get(key)
                # The actions of one commit have no order, so neither wins: readers disagree about the result.
                if known is not None and known[2] == where and known[0] != kind:
                    raise DamagedTableError(
                        f"{where} both adds and removes {key[0]} with the same deletion vector",
                        table=self.table,
                        next_step="repair the log with the tool that wrote it",
                    )
                latest[key] = (kind, body, where)
            elif kind == "protocol":
                self.protocol = Protocol.from_json(body, where=where)
            elif kind == "metaData":
                self.metadata = Metadata.from_json(body, where=where)
            elif kind == "txn":
                app, transaction = parse_transaction(body, where=where)
                self.transactions[app] = transaction
            elif kind == "domainMetadata":
                domain, configuration = parse_domain(body, where=where)
                self.domains[domain] = configuration

    def _key(self, kind: str, body: Any, where: str) -> tuple[str, str | None]:
        try:
            path = body["path"]
            if path.__class__ is str and path:
                descriptor = body.get("deletionVector")
                return path, None if descriptor is None else dv_id(descriptor)
            reason = "has no path"
        except (KeyError, TypeError) as error:
            reason = "has no path" if isinstance(error, KeyError) else "is malformed"
        raise DamagedTableError(f"{where}: {kind} {reason}", table=self.table)

    def keys(self) -> Keys | None:
        if not self.latest:
            return None
        paths = strings([path for path, _ in self.latest])
        ids = strings([dv for _, dv in self.latest])
        return Keys(np.unique(fingerprints(paths)), key_strings(paths, ids))

    def table_of(self, kind: str, columns: Sequence[str]) -> pa.Table:
        """These columns of one kind's actions, if they are the last about their key."""
        types = ADD_TYPES if kind == "add" else REMOVE_TYPES
        found = [(body, where) for action, body, where in self.latest.values() if action == kind and columns]
        if found:
            bodies, where = zip(*found, strict=True)
            return bulk_table(kind, list(bodies), list(where), columns, table=self.table)
        # Schema.empty_table() would import pandas.
        return pa.Table.from_batches([], pa.schema([(name, types[name]) for name in columns]))

    def newer(self, adds: Sequence[str], removes: Sequence[str], *, keyed: bool) -> Newer:
        """The result, with these columns. Releases the actions, which take more memory than their columns. ``keyed``:
        whether the keys are needed.
        """
        keys = self.keys() if keyed else None
        newer_adds, newer_removes = self.table_of("add", adds), self.table_of("remove", removes)
        self.latest.clear()
        return Newer(
            protocol=self.protocol,
            metadata=self.metadata,
            domains=self.domains,
            transactions=self.transactions,
            adds=newer_adds,
            removes=newer_removes,
            prints=fingerprints(newer_adds["path"]) if "path" in newer_adds.schema.names else None,
            keys=keys,
        )
