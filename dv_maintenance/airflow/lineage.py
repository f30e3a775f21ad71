"""What a task wrote, as OpenLineage has it. Its names of datasets: https://openlineage.io/docs/spec/naming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from airflow.sdk import BaseOperator

from dv_maintenance.storage.paths import absolute_uri

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from dv_maintenance.service.outcome import Outcome

__all__ = ["WithLineage", "dataset_of"]

_CHANGES: Final = ("files_added", "files_removed", "dvs_added", "files_deleted", "files_set_aside", "manifests")


class WithLineage(BaseOperator):
    """An operator that writes tables. OpenLineage asks it when a task has ended, in the process of the task."""

    _written: dict[str, Outcome]

    def wrote(self, path: str, outcome: Outcome) -> None:
        """Notes what became of a table, unless nothing changed in it."""
        if not outcome.report.get("dry_run") and any(_total(outcome, name) for name in _CHANGES):
            self._written = {**getattr(self, "_written", {}), path: outcome}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage:
        """The tables that the task wrote, with the files and bytes that it added to them. A table that was rewritten is
        its own input.
        """
        del task_instance
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

        written: dict[str, Outcome] = getattr(self, "_written", {})
        names = [dataset_of(path) for path in written]
        return OperatorLineage(
            inputs=[InputDataset(namespace, name) for namespace, name in names],
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
                for (namespace, name), outcome in zip(names, written.values(), strict=True)
            ],
        )


def _total(outcome: Outcome, name: str) -> int:
    """A number of an outcome and of its partitions."""
    return sum(int(each.numbers.get(name, 0)) for each in (outcome, *outcome.partitions.values()))


def dataset_of(path: str) -> tuple[str, str]:
    """The namespace and the name of a table: ``s3://bucket`` and a key without a leading slash; ``file`` and a path."""
    parts = urlsplit(absolute_uri(path))
    if parts.scheme == "file":
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path).strip("/")
