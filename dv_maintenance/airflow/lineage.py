"""What a task wrote: asset events, and OpenLineage's facets. Its names of datasets:
https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from airflow.sdk import AssetAlias, BaseOperator

from dv_maintenance.airflow.render import as_xcom
from dv_maintenance.storage.paths import absolute_uri

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset

    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.service.tables_file import TableSettings

_CHANGES: Final = ("files_added", "files_removed", "dvs_added", "files_deleted", "files_set_aside", "manifests")


class Writes(BaseOperator):
    """An operator that writes tables. A declared outlet has an event whenever its task succeeds; those of an alias are
    chosen while it runs, so that only what changed has one. OpenLineage asks when a task has ended, in its process.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._read: list[str] = []
        self._written: dict[tuple[str, str], Outcome] = {}
        self._alias = AssetAlias(f"{self.dag_id}.{self.task_id}")
        self.outlets: list[Any] = [*self.outlets, self._alias]

    def wrote(
        self, context: Any, table: TableSettings, asset: Asset, outcome: Outcome, *, changed: bool | None = None
    ) -> None:
        """Notes what became of a table, with an event of ``asset``, unless nothing changed.

        changed : whether ``asset`` did, if that is not the same as any change of files.
        """
        wrote = not outcome.report.get("dry_run") and any(_total(outcome, name) for name in _CHANGES)
        if wrote:
            self._written[dataset_of(table.table or table.path, named=table.table is not None)] = outcome
        if wrote if changed is None else changed:
            extra = {"reason": as_xcom(outcome)["reason"], **outcome.numbers}
            if asset in self.outlets:
                context["outlet_events"][asset].extra = extra
            else:
                context["outlet_events"][self._alias].add(asset, extra=extra)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage:
        """The tables that the task wrote, with the files and bytes that it added to them. A table that was rewritten is
        its own input; so is what named the rows to delete. Of a task that failed, OpenLineage asks the same.
        """
        del task_instance
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

        names = list(self._written)
        return OperatorLineage(
            inputs=[InputDataset(*name) for name in (*names, *map(dataset_of, self._read))],
            outputs=[
                OutputDataset(
                    namespace,
                    name,
                    outputFacets={
                        "outputStatistics": OutputStatisticsOutputDatasetFacet(
                            size=_total(outcome, "bytes_out"), fileCount=_total(outcome, "files_added")
                        )
                    },
                )
                for (namespace, name), outcome in zip(names, self._written.values(), strict=True)
            ],
        )


def _total(outcome: Outcome, name: str) -> int:
    """A number of an outcome and of its partitions."""
    return sum(int(each.numbers.get(name, 0)) for each in (outcome, *outcome.partitions.values()))


def dataset_of(place: str, *, named: bool = False) -> tuple[str, str]:
    """The namespace and the name of a table: ``s3://bucket`` and a key without a leading slash; ``file`` and a path;
    for one that is ``named``, its catalog and the rest of its name.
    """
    if named:
        catalog, _, name = place.partition(".")
        return catalog, name
    parts = urlsplit(absolute_uri(place))
    if parts.scheme == "file":
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path).strip("/")
