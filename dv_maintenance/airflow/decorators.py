"""``@task.dv_optimize`` and others for TaskFlow: an operator whose function returns its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)

from dv_maintenance.airflow.operators import (
    DvCheckOperator,
    DvDeleteOperator,
    DvErasureOperator,
    DvManifestOperator,
    DvOptimizeOperator,
    DvVacuumOperator,
)
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.errors import UsageError

# A template: the operator checks such an argument when the task runs.
_BY_FUNCTION: Final = "{{ 'returned by the function' }}"


class _Decorated(DecoratedOperator):
    """What the function returns is not rendered: text that comes from data must not run as a template."""

    overwrite_rtif_after_execution = True
    returnable: Sequence[str]

    def __init__(self, **kwargs: Any) -> None:
        self._expected = [name for name in ("table", "where") if name in self.returnable and kwargs.get(name) is None]
        super().__init__(**kwargs | dict.fromkeys(self._expected, _BY_FUNCTION))

    def execute(self, context: Any) -> Any:
        context_merge(context, self.op_kwargs)
        given = determine_kwargs(self.python_callable, self.op_args, context)
        returned = self.python_callable(*self.op_args, **given)
        with in_airflow_terms():
            found = {"table": returned} if isinstance(returned, str) else returned
            if not isinstance(found, Mapping) or not found.keys() <= set(self.returnable):
                raise UsageError(
                    f"the function of {self.task_id} returned {returned!r}",
                    next_step=f"return a table's path, or a mapping of these arguments: {', '.join(self.returnable)}",
                )
            if "table" in self._expected and not found.get("table"):
                raise UsageError(
                    f"the function of {self.task_id} returned no table", next_step="return one, or give the task one"
                )
        for name, value in {**dict.fromkeys(self._expected), **found}.items():
            setattr(self, name, value)
        return super().execute(context)


def _decorator(operator: type, name: str) -> Callable[..., Any]:
    """The function's arguments are the decorated function and those of the operator, which the function's replace."""
    returnable: Sequence[str] = operator.template_fields  # type: ignore[attr-defined]
    members = {
        "returnable": returnable,
        "template_fields": (*DecoratedOperator.template_fields, *returnable),
        "custom_operator_name": f"@task.{name}",
        "__module__": __name__,
        "__doc__": operator.__doc__,
    }
    made = type(f"{operator.__name__}ByFunction", (_Decorated, operator), members)
    # A function's annotation says what it returns, not what the task does.
    return partial(task_decorator_factory, multiple_outputs=False, decorated_operator_class=made)


dv_optimize = _decorator(DvOptimizeOperator, "dv_optimize")
dv_manifest = _decorator(DvManifestOperator, "dv_manifest")
dv_vacuum = _decorator(DvVacuumOperator, "dv_vacuum")
dv_delete = _decorator(DvDeleteOperator, "dv_delete")
dv_erasure = _decorator(DvErasureOperator, "dv_erasure")
dv_check = _decorator(DvCheckOperator, "dv_check")
