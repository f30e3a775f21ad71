"""Files with some rows removed and others appended, compared with plain lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.tables import splice
from dv_maintenance.tables.model import Since

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partition", pa.dictionary(pa.int32(), pa.string())),
        pa.field("size", pa.int64()),
        pa.field("values", pa.map_(pa.string(), pa.string())),
        pa.field("never", pa.string()),
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "path": st.text(max_size=3),
            "partition": st.sampled_from("ab"),
            "size": st.none() | st.integers(0, 9),
            "values": st.none() | st.just([("k", "v")]),
            "never": st.none(),
        }
    ),
    max_size=6,
)


def table(parts: list[list[dict[str, Any]]]) -> pa.Table:
    return pa.concat_tables([SCHEMA.empty_table(), *(pa.Table.from_pylist(part, schema=SCHEMA) for part in parts)])


@pytest.mark.parametrize("most", [1, 4096])
@settings(max_examples=examples(15), deadline=None)
@given(parts=st.lists(ROWS, max_size=4), newer=ROWS, data=st.data())
def test_as_lists(
    parts: list[list[dict[str, Any]]], newer: list[dict[str, Any]], most: int, data: st.DataObject
) -> None:
    files = table(parts)
    numbers = range(files.num_rows)
    gone = data.draw(st.sets(st.sampled_from(numbers)) if numbers else st.just(set()))
    since = Since({}, np.array(sorted(gone), np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "_MOST", most)
        found = splice.spliced(files, since, table([newer]))
    found.validate(full=True)
    stay = [row for number, row in enumerate(files.to_pylist()) if number not in gone]
    assert found.to_pylist() == stay + table([newer]).to_pylist()
    assert found["size"].num_chunks <= 1
