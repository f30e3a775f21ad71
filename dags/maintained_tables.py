"""A DAG for each table of the file that Dagster's component reads too. `make airflow` shows them on the demo's tables.

DVM_TABLES names the file.
"""

import os

from dv_maintenance.airflow import dv_maintenance_dags

dv_maintenance_dags(os.environ["DVM_TABLES"])
