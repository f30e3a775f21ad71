"""``dg scaffold defs dv_maintenance.DvMaintainedTablesComponent NAME`` writes a file that loads as it is."""

from __future__ import annotations

import dagster as dg

_YAML = """\
type: {type}

attributes:
  # Apply to every table; a table's own settings win.
  defaults:
    policy: {{max_deleted_ratio: 0.05}}
    # storage_options: {{aws_region: eu-central-1, aws_secret_access_key: "{{{{ env.LAKE_SECRET }}}}"}}

  tables:
    - path: s3://lake/orders
      jobs: [optimize, vacuum]
  # Every table below a folder or prefix. `dg utils refresh-defs-state` searches them.
  # folders:
  #   - path: s3://lake/raw

  schedule: {{cron: "0 3 * * *", timezone: UTC}}
  spark: {{master: "local[*]"}}
"""


class DvScaffolder(dg.Scaffolder):
    """Writes ``defs.yaml``, or ``component.py`` in the Python format."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        if request.scaffold_format == "yaml":
            text = _YAML.format(type=request.type_name)
            if request.append:
                with request.target_path.open("a", encoding="utf-8") as file:
                    file.write(f"---\n{text}")
            else:
                (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")
        else:
            module, name = request.type_name.rsplit(".", 1)
            (request.target_path / "component.py").write_text(
                _PYTHON.format(module=module, name=name), encoding="utf-8"
            )


_PYTHON = """\
import dagster as dg

from {module} import {name}


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> {name}:
    return {name}.model_validate(
        {{
            "tables": [{{"path": "s3://lake/orders", "jobs": ["optimize", "vacuum"]}}],
            "schedule": {{"cron": "0 3 * * *"}},
            "spark": {{"master": "local[*]"}},
        }}
    )
"""
