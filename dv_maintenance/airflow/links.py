"""A link from a task to the plan it ran."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

PLAN = "plan"
"""The XCom with the plan in words."""


class DvPlanLink(BaseOperatorLink):
    """Opens the task's XComs, which have the plan in words and the numbers."""

    name = "Plan"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator
        task = f"dags/{quote(ti_key.dag_id)}/runs/{quote(ti_key.run_id)}/tasks/{quote(ti_key.task_id)}"
        mapped = "" if ti_key.map_index is None or ti_key.map_index < 0 else f"/mapped/{ti_key.map_index}"
        return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/{task}{mapped}/xcom"
