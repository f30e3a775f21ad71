"""The service below the faces: which tables to inspect, what is due, which run to ask for, what a run did.

It knows no orchestrator. A face (``dagster``, ``cli``) passes in what only it knows, such as which runs are active, and
renders what it gets back. Nothing here imports dagster, airflow or pyspark.
"""
