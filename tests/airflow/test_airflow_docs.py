"""The DAG files of the page, the examples, and the public names, in Airflow's environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from support.places import ROOT


def test_the_page_s_dags_load(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "airflow.md").read_text()
    files = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for number, text in enumerate(files):
        (tmp_path / f"tables{number or ''}.yaml").write_text(text)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    texts = [*blocks, *(path.read_text() for path in sorted((ROOT / "dags").glob("*.py")))]
    assert len(texts) == 6
    script = (
        "import os; os.environ['DVM_TABLES'] = 'tables.yaml'\n"
        "import dv_maintenance.airflow as face\n"
        "for name in face.__all__: getattr(face, name)\n"
        f"for number in range(1, {len(files)}): face.dv_maintenance_dags(f'tables{{number}}.yaml')\n"
        f"for text in {texts!r}:\n"
        "    exec(compile(text.replace('/lake/tables.yaml', 'tables.yaml'), 'page', 'exec'), names := {})\n"
        "    if 'alert' in names:\n"
        "        from types import SimpleNamespace as ti\n"
        "        names['alert']({'ti': ti(dag_id='lake.orders', task_id='check'), 'exception': 'readable: gone'})\n"
        "    if 'erase' in names:\n"
        "        from jinja2 import Template\n"
        "        print(Template(names['erase'].partial_kwargs['keys']).render(params=names['dag'].params))\n"
    )
    assert in_airflow(script).splitlines()[-1] == "erase.parquet"
