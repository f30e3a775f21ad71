"""What operators and the sensor share: the table or the file of tables that they name, and how they are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from airflow.sdk import BaseOperator

from dv_maintenance.airflow.arguments import literal
from dv_maintenance.airflow.tables import watch_config, watched
from dv_maintenance.service.tables_file import TableSettings, WatchConfig

TABLE_FIELDS = ("table", "tables_file", "storage_conn_id")
"""Templated by all that name a table."""
FILE_FIELDS = ("tables_file", "name", "storage_conn_id")
"""Templated by all that name a file of tables."""


class _Named(BaseOperator):
    def __init__(self, *, tables_file: str | None = None, storage_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tables_file = tables_file
        self.storage_conn_id = storage_conn_id

    def on_kill(self) -> NoReturn:
        """Ends the work before its next commit; uncommitted files are deleted on the way out. A worker that shuts down
        may retry the task.
        """
        raise SystemExit("killed: earlier commits are complete, and nothing else changed")


class OnTable(_Named):
    """What operators and the sensor share.

    :param table: path, URI or name in a catalog, or a mapping with the keys of a table in YAML; with ``tables_file``,
        its name there.
    :param tables_file: the YAML file of tables, the same as Dagster's component reads.
    :param storage_conn_id: a connection with the storage's options and secrets; its types are those of
        :class:`~dv_maintenance.airflow.hook.DvHook`.
    """

    template_fields: Sequence[str] = TABLE_FIELDS

    def __init__(self, *, table: str | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        # A connection may have the catalog of a name.
        by_connection = self.storage_conn_id is not None and isinstance(table, dict) and "table" in table
        if self.tables_file is None and literal(table) and not by_connection:
            watched(table)

    def watched(self, context: Any = None) -> TableSettings:
        """The table's settings. A mapped task has the table's name in the page. Raises as ``tables.watched``."""
        found = watched(self.table, self.tables_file, self.storage_conn_id)
        if context and not context.get("map_index_template"):
            context["map_index_template"] = found.name
        return found


class OnFile(_Named):
    """What operators on many tables share.

    :param tables_file: the YAML file of tables, the same as Dagster's component reads.
    :param name: of the document, if the file has several.
    :param storage_conn_id: a connection with the storage's options and secrets; its types are those of
        :class:`~dv_maintenance.airflow.hook.DvHook`.
    """

    template_fields: Sequence[str] = FILE_FIELDS

    def __init__(self, *, tables_file: str, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(tables_file=tables_file, **kwargs)
        self.name = name

    def config(self) -> WatchConfig:
        """The file's settings. Raises as ``tables.watch_config``."""
        return watch_config(str(self.tables_file), self.name, self.storage_conn_id)
