"""Catalogs that name tables: ``CATALOG.…``, for the catalogs that the file named by ``DVM_CATALOGS`` describes.

.. code-block:: yaml

    catalogs:
      unity: {type: unity, uri: "https://host", token: "${UC_TOKEN}"}
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from dv_maintenance.catalogs.kinds import CatalogSettings, kind_called
from dv_maintenance.config import load_yaml, validate
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.registry import CATALOGS, Location

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


def located(name: str, storage_options: Mapping[str, str] | None = None) -> tuple[str, Location] | None:
    """Format and location of the table of this name; ``None`` if it begins with the name of no catalog.

    Raises
    ------
    UsageError : see :func:`configured`; or it is not the name of a table.
    TableNotFoundError, UnsupportedFeatureError, StorageDeniedError, StorageUnavailableError : as the catalog's module.
    """
    catalog, dot, rest = name.partition(".")
    if not dot or not os.environ.get(CATALOGS):
        return None
    settings = configured().get(catalog)
    if settings is None:
        return None
    if not parts_of(rest):
        raise UsageError(
            f"{name!r} is not the name of a table",
            next_step=f"write {catalog}.CATALOG.SCHEMA.TABLE, and parts with dots in backticks",
        )
    found: tuple[str, Location] = kind_called(settings.type).located(name, settings, storage_options or {})
    return found


def quoted(parts: Iterable[str]) -> str:
    """The name of these parts.

    >>> quoted(["main", "a.b"])
    'main.`a.b`'
    """
    return ".".join(
        each if re.fullmatch(r"[^`.:/\s]+", each) else "`" + each.replace("`", "``") + "`" for each in parts
    )


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a dotted name, those in backticks without them; none if it is not a name.

    >>> parts_of("main.`my schema`.`a.b`")
    ('main', 'my schema', 'a.b')
    """
    if re.fullmatch(rf"(?:{_PART})(?:\.(?:{_PART}))*", name) is None:
        return ()
    found = re.findall(_PART, name)
    return tuple(each[1:-1].replace("``", "`") if each.startswith("`") else each for each in found)
