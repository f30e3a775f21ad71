"""Tables of Unity Catalog, by its Delta API (``/delta/v1``).

A managed Delta table's newest version, and the commits that are not published yet, are what the catalog says: one
request for each look. It ratifies each commit, too, and says what maintenance it permits. An external table is one at a
path, whose place has a name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dv_maintenance.catalogs import parts_of
from dv_maintenance.catalogs.keys import options_of
from dv_maintenance.catalogs.login import LoginSettings
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.catalogs.unity.client import FULL, failed, info_path, pages, request, table_path
from dv_maintenance.catalogs.unity.examine import examine as examined
from dv_maintenance.catalogs.unity.keys import vend
from dv_maintenance.errors import (
    DamagedTableError,
    RefusedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.storage import FileExistsAlreadyError, Storage, plain_uri
from dv_maintenance.tables.delta.log.ratified import Ratified, StagedCommit, TooManyUnpublishedError, UnpublishedCommit
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.registry import Location, NamedTable, quoted

__all__ = ["Settings", "UnityTable", "examined", "listed", "located", "vend"]

_FRESH: Final = 5.0  # seconds
_MANAGED: Final = "MANAGED"
_EXTERNAL: Final = "EXTERNAL"
_PAGE: Final = 50  # more than that the server does not answer at once
_NO_TABLES: Final = "information_schema"


class Settings(LoginSettings):
    """uri : of the server, without a path."""

    TOKENS = "/oidc/v1/token"
    BASIC = True

    type: Literal["unity"]
    scope: str = "all-apis"


@dataclass(frozen=True, slots=True)
class UnityTable:
    """The handle of a table. See ``registry.CatalogTable`` and ``log.ratified.ManagingCatalog``.

    name : as users write it: the name of the settings, then catalog, schema and table.
    uuid : of the table that had the name when it was opened.
    """

    name: str
    uuid: str
    settings: Settings = field(repr=False)
    opening: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list, repr=False, compare=False)
    others: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def identity(self) -> str:
        return self.uuid

    def optimizer(self) -> str:
        """See ``ManagingCatalog``. Only the generic API says it: one request, the first time. A server that refuses it
        has no optimizer.

        Raises
        ------
        UnsupportedFeatureError : the table has row filters or column masks.
        StorageUnavailableError : nobody answered.
        """
        if not self.others:
            try:
                info = request(self.name, self.settings, info_path(self.name))
            except Refusal:
                info = {}
            if why := hidden_rows(info):
                raise UnsupportedFeatureError(
                    f"{self.name} is {why}, and left alone: its files have rows that readers must not see",
                    features=(why,),
                    next_step="maintain it with the catalog's own engine",
                )
            self.others.append(optimizer_of(info))
        return self.others[0]

    def ratified(self) -> Ratified:
        """The newest version, and the commits that the catalog holds. The answer that the table was opened with serves
        its first look, too, if that follows at once.

        Raises
        ------
        TableNotFoundError : the name belongs to no table, or to another one by now.
        DamagedTableError : the answer contradicts itself.
        StorageDeniedError, StorageUnavailableError : the catalog refused, or did not answer.
        """
        at, first = self.opening.pop() if self.opening else (0.0, {})
        body = first if first and time.monotonic() - at < _FRESH else _ask(self.name, self.settings)
        uuid = text(body.get("metadata"), "table-uuid")
        if uuid != self.uuid:
            raise TableNotFoundError(
                f"{self.name} is another table now ({uuid or 'without an id'}): it was dropped and created again",
                next_step="open it again",
            )
        return _ratified(self.name, body)

    def ratify(self, commit: StagedCommit) -> Ratified:
        """See ``ManagingCatalog``."""
        added = {
            "version": commit.version,
            "timestamp": commit.timestamp,
            "file-name": commit.name,
            "file-size": commit.size,
            "file-modification-timestamp": commit.modified,
        }
        updates = [{"action": "add-commit", "commit": added}]
        if domains := {name: value for name, value in commit.domains.items() if name in _MIRRORED}:
            updates.append({"action": "set-domain-metadata", "updates": domains})
        return self._update(updates)

    def report(self, published: int) -> Ratified:
        """See ``ManagingCatalog``."""
        return self._update([{"action": "set-latest-backfilled-version", "latest-published-version": published}])

    def _update(self, updates: list[dict[str, Any]]) -> Ratified:
        body = {"requirements": [{"type": "assert-table-uuid", "uuid": self.uuid}], "updates": updates}
        try:
            return _ratified(self.name, request(self.name, self.settings, table_path(self.name), body))
        except Refusal as refusal:
            match refusal.kind:
                case "CommitVersionConflictException" | "AlreadyExistsException":
                    raise FileExistsAlreadyError(f"{self.name}: {refusal}") from None
                case "UpdateRequirementConflictException":
                    self._check_same()
                case kind if kind == FULL:
                    raise TooManyUnpublishedError(str(refusal)) from None
            if not refusal.certain:
                raise StorageUnavailableError(
                    f"{self.name}: an attempt had no answer, and the catalog refused the next one ({refusal})",
                    next_step="run it again",
                ) from None
            if refusal.status == 409:
                raise StorageUnavailableError(f"{self.name}: {refusal}", next_step="run it again") from None
            raise failed(self.name, refusal, "writing needs MODIFY and SELECT on the table") from None

    def _check_same(self) -> None:
        """Raise RefusedError if the name belongs to another table, or to none: whatever becomes of the commit, it is
        not one of that table.
        """
        try:
            self.ratified()
        except TableNotFoundError as error:
            raise RefusedError(error.message, next_step="check who dropped the table, then run it again") from None


# The domains that the API takes. The log has all of them.
_MIRRORED: Final = frozenset({"delta.rowTracking", "delta.clustering"})


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """Format and location of ``NAME.CATALOG.SCHEMA.TABLE``. Keys among the ``options`` of the
    storage go before vended ones.

    Raises
    ------
    As :meth:`UnityTable.ratified`; UnsupportedFeatureError for a view or anything else that is not a Delta table of
    files.
    """
    body = _ask(name, settings)
    metadata = body.get("metadata") or {}
    kind, place = text(metadata, "table-type"), text(metadata, "location")
    if kind not in (_MANAGED, _EXTERNAL) or not place:
        raise UnsupportedFeatureError(
            f"{name} is of the type {kind or '(none)'}, and not a table of files",
            features=(kind or "no type",),
            next_step="name a managed or external Delta table",
        )
    uri = plain_uri(place)
    uuid = text(metadata, "table-uuid")
    handle = (
        UnityTable(name, uuid, settings, [(time.monotonic(), body)]) if kind == _MANAGED else NamedTable(name, uuid)
    )
    return "delta", Location(Storage(uri, options_of(name, settings, uri, options)), handle)


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """Everything in ``NAME.CATALOG.SCHEMA``, or in each schema of ``NAME.CATALOG.*``. See ``dv_maintenance.catalogs``.

    Raises
    ------
    UsageError : it is not the name of a schema.
    TableNotFoundError, StorageDeniedError, StorageUnavailableError : as :meth:`UnityTable.ratified`.
    """
    parts = parts_of(name)[1:]
    if len(parts) != 2:
        start = name.partition(".")[0]
        raise UsageError(f"{name!r} is not the name of a schema", next_step=f"write {start}.CATALOG.SCHEMA")
    catalog, schema = parts
    if schema != "*":
        yield from _in_schema(name, settings, catalog, schema, ())
        return
    for each in pages(name, settings, "schemas", catalog_name=catalog):
        if (schema := text(each, "name")) != _NO_TABLES:
            yield from _in_schema(name, settings, catalog, schema, (schema,))


def _in_schema(
    name: str, settings: Settings, catalog: str, schema: str, before: tuple[str, ...]
) -> Iterator[FoundTable]:
    for each in pages(name, settings, "tables", catalog_name=catalog, schema_name=schema, max_results=_PAGE):
        why = left_alone(each)
        yield FoundTable(quoted((*before, text(each, "name"))), "" if why else "delta", why)


def left_alone(info: Mapping[str, Any]) -> str:
    """Why what the generic API says of a table makes it none to maintain, such as "a view"; "" for a Delta table."""
    kind, provider = text(info, "table_type"), text(info, "data_source_format")
    if kind not in (_MANAGED, _EXTERNAL):
        return f"a {kind.lower().replace('_', ' ')}" if kind else "without a type"
    if provider != "DELTA":
        return f"a table of the format {provider or 'none'}"
    return hidden_rows(info)


def hidden_rows(info: Mapping[str, Any]) -> str:
    """What keeps readers from seeing all rows of a table, such as "a table with a row filter"; "" for nothing."""
    if info.get("row_filter"):
        return "a table with a row filter"
    if any(isinstance(each, Mapping) and each.get("mask") for each in info.get("columns") or ()):
        return "a table with column masks"
    return ""


def optimizer_of(info: Mapping[str, Any]) -> str:
    """What of the vendor's maintains a table, by what the generic API says of it; see ``Snapshot.optimizer``."""
    flag = info.get("effective_predictive_optimization_flag")
    if text(flag, "value") != "ENABLE":
        return ""
    source = (text(flag, "inherited_from_type").lower(), text(flag, "inherited_from_name"))
    where = " ".join(each for each in source if each)
    return f"predictive optimization{f' (enabled for the {where})' if where else ''}"


def _ratified(name: str, body: Mapping[str, Any]) -> Ratified:
    try:
        latest = int(body.get("latest-table-version") or 0)
        unpublished = {
            int(each["version"]): UnpublishedCommit(
                str(each["file-name"]), int(each["file-size"]), int(each["file-modification-timestamp"])
            )
            for each in body.get("commits") or ()
        }
        allowed = frozenset(map(str, body.get("allowed-maintenance-operations") or ()))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedTableError(f"{name}: the catalog's answer can't be understood ({error!r})") from None
    return Ratified(latest, unpublished, allowed)


def _ask(name: str, settings: Settings, more: str = "") -> Mapping[str, Any]:
    """The answer to ``GET`` of the table."""
    try:
        return request(name, settings, table_path(name) + more)
    except Refusal as refusal:
        needed = "reading needs SELECT on the table, and USE on its schema and catalog"
        raise failed(name, refusal, needed) from None
