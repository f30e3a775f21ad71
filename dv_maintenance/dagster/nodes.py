"""The definitions of a table's assets and checks, one op for each.

They are what ``dg.multi_asset`` and ``dg.multi_asset_check`` would make. The decorators infer inputs,
types and config schema from a function, again for each table, and take three times as long. Ops of one kind differ only
in names, keys and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import dagster as dg

# The work of an op, from its context, and by name the resources that it asks for.
Compute = Callable[..., Iterator[Any]]

_IN: Final = dg.In(dg.Nothing)
_CHECK: Final = dg.Out(Any, is_required=False)


def materializable(
    compute: Compute,
    *,
    name: str,
    spec: dg.AssetSpec,
    pool: str,
    tags: Mapping[str, Any],
    config: type[dg.Config],
    resources: frozenset[str] = frozenset(),
    retry_policy: dg.RetryPolicy | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
) -> dg.AssetsDefinition:
    """An asset that an op of this name makes."""
    ins = _ins(dep.asset_key for dep in spec.deps)
    output, out = _out(spec)
    op = dg.OpDefinition(
        _called(compute, resources),
        name,
        ins=dict.fromkeys(ins, _IN),
        outs={output: out},
        config_schema=_schema(config),
        required_resource_keys=resources,
        tags=dict(tags),
        pool=pool,
        retry_policy=retry_policy,
    )
    return dg.AssetsDefinition(
        node_def=op,
        keys_by_input_name=ins,
        keys_by_output_name={output: spec.key},
        specs=[spec],
        backfill_policy=backfill_policy,
    )


def observable(
    compute: Compute, *, name: str, spec: dg.AssetSpec, checks: Sequence[dg.AssetCheckSpec]
) -> dg.AssetsDefinition:
    """An asset that is made elsewhere, and that an op of this name observes; any of it and its checks."""
    output, out = _out(spec)
    outputs = _by_output(checks)
    op = dg.OpDefinition(
        _called(compute), name, outs={output: out, **dict.fromkeys(outputs, _CHECK)}, config_schema=_schema(None)
    )
    return dg.AssetsDefinition(
        node_def=op,
        keys_by_output_name={output: spec.key},
        specs=[spec],
        execution_type=_observation(),
        check_specs_by_output_name=outputs,
        can_subset=True,
    )


def checks(
    compute: Compute, *, name: str, description: str, specs: Sequence[dg.AssetCheckSpec]
) -> dg.AssetChecksDefinition:
    """Checks that one op of this name evaluates, any of them."""
    keys = dict.fromkeys(spec.asset_key for spec in specs)
    keys |= dict.fromkeys(dep.asset_key for spec in specs for dep in spec.additional_deps)
    ins = _ins(keys)
    outputs = _by_output(specs)
    op = dg.OpDefinition(
        _called(compute),
        name,
        ins=dict.fromkeys(ins, _IN),
        outs=dict.fromkeys(outputs, _CHECK),
        description=description,
        config_schema=_schema(None),
    )
    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name=ins, node_def=op, check_specs_by_output_name=outputs, can_subset=True
    )
    return made


def _called(compute: Compute, resources: frozenset[str] = frozenset()) -> Callable[[Any, Any], Iterator[Any]]:
    """With its resources as parameters, as a decorator would pass them; inputs carry no values."""
    return lambda context, _: compute(context, **{name: getattr(context.resources, name) for name in resources})


def _ins(keys: Iterable[dg.AssetKey]) -> dict[str, dg.AssetKey]:
    """By the names that Dagster gives to inputs of these keys."""
    return {"_".join(key.path).replace("-", "_").replace(".", "_"): key for key in keys}


def _by_output(checks: Iterable[dg.AssetCheckSpec]) -> dict[str, dg.AssetCheckSpec]:
    return {check.get_python_identifier(): check for check in checks}


def _out(spec: dg.AssetSpec) -> tuple[str, dg.Out]:
    out = dg.Out(dg.Nothing, description=spec.description, is_required=not spec.skippable, metadata=spec.metadata)
    return spec.key.to_python_identifier(), out


@cache
def _schema(config: type[dg.Config] | None) -> Any:
    """The config schema of an op with these fields, or with none."""
    fields = {} if config is None else config.to_fields_dict()
    return dg.OpDefinition(_nothing, "op", config_schema=fields).config_schema


@cache
def _observation() -> Any:
    """The execution type of observed assets. Dagster does not export it: it is read from an asset."""
    made: dg.AssetsDefinition = dg.multi_observable_source_asset(name="op", specs=[dg.AssetSpec("asset")])(_nothing)
    return made.execution_type


def _nothing() -> None: ...
