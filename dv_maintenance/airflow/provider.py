"""What Airflow reads about this provider, through the entry point ``apache_airflow_provider``. Imports nothing of
Airflow.
"""

from __future__ import annotations

from importlib.metadata import metadata, version
from typing import Any

_NAME = "Deletion vector maintenance"
_PACKAGE = "dv_maintenance.airflow"


def _documentation() -> dict[str, str]:
    """The address of our own documentation, as far as the package's metadata has one."""
    urls = dict(text.split(", ", 1) for text in metadata("dv-maintenance").get_all("Project-URL") or ())
    return {"external-doc-url": urls["Documentation"]} if "Documentation" in urls else {}


def provider_info() -> dict[str, Any]:
    """In the form of Airflow's ``provider_info.schema.json``."""

    def modules(name: str) -> list[dict[str, Any]]:
        return [{"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{name}"]}]

    return {
        "package-name": "dv-maintenance",
        "name": _NAME,
        "description": "Purge deletion vectors, vacuum, write manifests: for Delta, Lance, Paimon and Iceberg tables.",
        "versions": [version("dv-maintenance")],
        "integrations": [{"integration-name": _NAME, "tags": ["software"], **_documentation()}],
        "operators": [each for name in ("operators", "night", "vacuums", "many") for each in modules(name)],
        "sensors": modules("sensor"),
        "hooks": modules("hook"),
        "triggers": modules("trigger"),
        "task-decorators": [
            {"name": name, "class-name": f"{_PACKAGE}.decorators.{name}"}
            for name in ("dv_check", "dv_delete", "dv_erasure", "dv_manifest", "dv_optimize", "dv_vacuum")
        ],
        "extra-links": [f"{_PACKAGE}.links.DvPlanLink"],
        "connection-types": [
            {
                "hook-class-name": f"{_PACKAGE}.hook.DvHook",
                "hook-name": "Table storage",
                "connection-type": "dvstorage",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "password", "port"],
                    "relabeling": {"extra": "Storage options", "host": "URI to test"},
                    "placeholders": {
                        "extra": '{"aws_region": "eu-central-1", "aws_secret_access_key": "..."}',
                        "host": "s3://bucket/prefix",
                    },
                },
            }
        ],
    }
