"""Storage options that say which catalog vends the keys for a table, see ``dv_maintenance.credentials``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from dv_maintenance.catalogs.kinds import CatalogSettings, kind_called
from dv_maintenance.credentials import OPERATION

# Options with which users bring keys of their own.
_OWN: Final = re.compile(r".*(?:key|token|secret|sas|credential|profile|service_account|skip_signature|client_id).*")


def options_of(name: str, settings: CatalogSettings, place: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table's storage at ``place``, whose keys the catalog vends, unless ``options`` bring some."""
    if place.startswith("file://") or any(_OWN.fullmatch(each.lower()) for each in options):
        return dict(options)
    asked = {"type": settings.type, "settings": settings.model_dump_json(), "table": name, "place": place}
    return {**options, **{f"catalog.{key}": value for key, value in asked.items()}, OPERATION: "READ"}


def settings_of(options: Mapping[str, str]) -> Any:
    """The settings of the catalog that these options name."""
    # They were validated before: what is left of ``${NAME}`` is a text.
    known = json.loads(options["catalog.settings"])
    return kind_called(options["catalog.type"]).Settings.model_construct(**known)
