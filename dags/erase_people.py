"""A DAG by hand: erase a list of customers from several tables, then check each. Trigger it with a configuration."""

import os
from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from dv_maintenance.airflow import DvCheckOperator, DvErasureOperator

FILE = os.environ["DVM_TABLES"]
TABLES = ["demo/orders"]

with DAG(
    "erase_people",
    description="Deletes rows by keys, purges their files, and says when the last bytes can go.",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    params={"keys": Param("erase.parquet", type="string"), "on": Param("customer", type="string")},
    tags=["dv_maintenance"],
) as dag:
    erase = DvErasureOperator.partial(
        task_id="erase", tables_file=FILE, keys="{{ params.keys }}", on=["{{ params.on }}"]
    ).expand(table=TABLES)
    check = DvCheckOperator.partial(task_id="check", tables_file=FILE, fail_on="warn").expand(table=TABLES)
    erase >> check
