"""A zero byte in the name of an encoding ended the process, in Lance's own library."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table


def test_the_name_of_an_encoding_that_is_no_text_is_damage(pylance: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "t"
    pylance.write_dataset(pa.table({"i": [1, 2, None], "s": ["a", "bb", None]}), str(place))
    (file,) = (place / "data").glob("*.lance")
    data = file.read_bytes()
    found = [match.start() for match in re.finditer(rb"/lance\.encodings", data)]
    assert found
    for at in found:
        file.write_bytes(data[: at + 9] + b"\0" + data[at + 10 :])
        with pytest.raises(DamagedTableError, match="the name of an encoding is no text") as caught:
            list(read(open_table(str(place)))[1])
        assert file.name in caught.value.message
    file.write_bytes(data)
    assert sum(batch.num_rows for batch in read(open_table(str(place)))[1]) == 3
