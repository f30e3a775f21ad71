"""Storage options that say which catalog vends the keys for a table, see ``dv_maintenance.credentials``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dv_maintenance.catalogs.kinds import CatalogSettings, kind_called
from dv_maintenance.catalogs.server import text
from dv_maintenance.credentials import OPERATION
from dv_maintenance.storage import plain_uri

# Options with which users bring keys of their own.
_OWN: Final = re.compile(r".*(?:key|token|secret|sas|credential|profile|service_account|skip_signature|client_id).*")


def options_of(name: str, settings: CatalogSettings, place: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table's storage at ``place``, whose keys the catalog vends, unless ``options`` bring some."""
    if place.startswith("file://") or any(_OWN.fullmatch(each.lower()) for each in options):
        return dict(options)
    asked = {"type": settings.type, "settings": settings.model_dump_json(), "table": name, "place": place}
    return {**options, **{f"catalog.{key}": value for key, value in asked.items()}, OPERATION: "READ"}


def nearest(place: str, credentials: Iterable[Any]) -> Mapping[str, Any]:
    """Of what a catalog vends, what has the longest ``prefix`` above the place; nothing if none has."""
    fitting = [
        each
        for each in credentials
        if f"{place}/".startswith(f"{plain_uri(text(each, 'prefix') or place).rstrip('/')}/")
    ]
    found: Mapping[str, Any] = max(fitting, key=lambda each: len(text(each, "prefix")), default={})
    return found


def settings_of(options: Mapping[str, str]) -> Any:
    """The settings of the catalog that these options name."""
    # They were validated before: what is left of ``${NAME}`` is a text.
    known = json.loads(options["catalog.settings"])
    return kind_called(options["catalog.type"]).Settings.model_construct(**known)
