"""Catalogs that name tables: ``CATALOG.…``, for the catalogs under the key ``catalogs`` of a file of tables, or of the
file that ``DVM_CATALOGS`` names.

.. code-block:: yaml

    catalogs:
      unity: {type: unity, uri: "https://host", token: "${UC_TOKEN}"}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from dv_maintenance.catalogs.kinds import CatalogSettings, kind_called
from dv_maintenance.config import Document, load_yaml, validate
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.registry import CATALOGS, Location, known_format, quoted

_PART: Final = r"`(?:[^`]|``)+`|[^.`]+"


class _File(BaseModel):
    # Other keys are those of a file of tables, which may be the same file.
    model_config = ConfigDict(extra="ignore", frozen=True)

    catalogs: Mapping[str, CatalogSettings] = {}


def configured() -> Mapping[str, CatalogSettings]:
    """The catalogs by name; none without a file.

    Raises
    ------
    UsageError : names the file, and the line and key that are wrong.
    """
    path = os.environ.get(CATALOGS)
    if not path:
        return {}
    return validate(_File, load_yaml(path), what="catalogs").catalogs


def from_plain(catalogs: Mapping[str, Any], source: str) -> Mapping[str, CatalogSettings]:
    """Catalogs from plain data. ``source``: for errors. Raises UsageError that names the key."""
    return validate(_File, Document({"catalogs": catalogs}, source), what="catalogs").catalogs


def expect(catalogs: Mapping[str, CatalogSettings]) -> None:
    """Tell these catalogs' kinds that their tables may be opened. Asks no catalog."""
    for name, settings in catalogs.items():
        if (expected := getattr(kind_called(settings.type), "expected", None)) is not None:
            expected(name, settings)


def settings_of(name: str, catalogs: Mapping[str, CatalogSettings] | None = None) -> CatalogSettings | None:
    """The settings of the catalog that a name begins with: from ``catalogs``, or else one of :func:`configured`.
    ``None`` if it begins with the name of no catalog. Raises UsageError as :func:`configured`.
    """
    catalog, dot, _ = name.partition(".")
    if not dot:
        return None
    return (catalogs or {}).get(catalog) or configured().get(catalog)


def located(
    name: str,
    storage_options: Mapping[str, str] | None = None,
    catalogs: Mapping[str, CatalogSettings] | None = None,
) -> tuple[str, Location] | None:
    """Format and location of the table of this name; ``None`` if it begins with the name of no catalog.

    Raises
    ------
    UsageError : see :func:`configured`; or it is not the name of a table.
    TableNotFoundError, UnsupportedFeatureError, StorageDeniedError, StorageUnavailableError : as the catalog's module.
    """
    settings = settings_of(name, catalogs)
    if settings is None:
        return None
    catalog, _, rest = name.partition(".")
    if not parts_of(rest):
        raise UsageError(
            f"{name!r} is not the name of a table",
            next_step=f"write {catalog}.SCHEMA.TABLE, and parts with dots in backticks",
        )
    found: tuple[str, Location] = kind_called(settings.type).located(name, settings, storage_options or {})
    return found


def listed(schema: str, catalogs: Mapping[str, CatalogSettings] | None = None) -> list[FoundTable]:
    """Everything in a schema, ordered by name; see the module. Opens no table.

    Raises
    ------
    UsageError : it is not the name of a schema in a catalog that is known.
    TableNotFoundError, StorageDeniedError, StorageUnavailableError : as the catalog's module.
    """
    if prefix := format_of(schema):
        known = known_format(prefix)
        if known is not None and known.listed is not None:
            module, _, function = known.listed.partition(":")
            return sorted(getattr(import_module(module), function)(schema.partition(":")[2]))
    settings = settings_of(schema, catalogs)
    if settings is None:
        raise unknown(schema)
    return sorted(kind_called(settings.type).listed(schema, settings))


def is_known(name: str, catalogs: Mapping[str, CatalogSettings] | None = None) -> bool:
    """Whether a place is the name of something in a catalog, by its first part, and not a path or URI."""
    if format_of(name):
        return True
    unquoted = re.sub(r"`(?:[^`]|``)*`", "", name)
    return not re.search("[/:]", unquoted) and settings_of(name, catalogs) is not None


def format_of(name: str) -> str:
    """``iceberg`` of ``iceberg:CATALOG.NAMESPACE.TABLE``, for formats that ask catalogs themselves; "" of others."""
    prefix, colon, rest = name.partition(":")
    known = known_format(prefix) if colon and "/" not in rest else None
    return prefix if known is not None and known.locate is not None else ""


def unknown(name: str) -> UsageError:
    """The error for a name whose first part is the name of no catalog."""
    return UsageError(
        f"{name!r} begins with the name of no catalog", next_step="describe the catalog under 'catalogs' in the file"
    )


def canonical(name: str) -> str:
    """The one spelling of a name, with backticks where a part needs them. A name of a format's own is left alone.

    Raises ValueError if it is not a name.
    """
    if format_of(name):
        return name
    parts = parts_of(name)
    if len(parts) < 2:
        raise ValueError("write CATALOG.….NAME, and parts with dots in backticks")
    return quoted(parts)


def secrets_of(settings: CatalogSettings) -> list[str]:
    """The values that are never printed. Of a mapping, those whose keys say that they are secret."""
    hidden = [getattr(settings, name) for name, each in type(settings).model_fields.items() if not each.repr]
    texts = [str(each) for each in hidden if each and not isinstance(each, Mapping)]
    mappings = [each for each in hidden if isinstance(each, Mapping)]
    return texts + [str(each) for of in mappings for key, each in of.items() if _is_secret(key)]


def _is_secret(key: str) -> bool:
    return re.search("key|token|secret|sas|credential|password", key.lower()) is not None


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a dotted name, those in backticks without them; none if it is not a name.

    >>> parts_of("main.`my schema`.`a.b`")
    ('main', 'my schema', 'a.b')
    """
    if re.fullmatch(rf"(?:{_PART})(?:\.(?:{_PART}))*", name) is None:
        return ()
    found = re.findall(_PART, name)
    return tuple(each[1:-1].replace("``", "`") if each.startswith("`") else each for each in found)
