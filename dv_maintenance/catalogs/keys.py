"""Storage options that say which catalog vends the keys for a table, see ``dv_maintenance.credentials``."""

from __future__ import annotations

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
    asked = {**settings.model_dump(), "table": name, "place": place}
    return {**options, **{f"catalog.{key}": str(value) for key, value in asked.items() if value}, OPERATION: "READ"}


def settings_of(options: Mapping[str, str]) -> Any:
    """The settings of the catalog that these options name."""
    model = kind_called(options["catalog.type"]).Settings
    known = {key: options.get(f"catalog.{key}") for key in model.model_fields}
    # They were validated before. What is left of ``${NAME}`` is a text.
    return model.model_construct(**{key: value for key, value in known.items() if value is not None})
