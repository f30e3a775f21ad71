"""Tags of a ``remove`` that say where a rewrite put the rows of the file, as Databricks' OPTIMIZE writes them.

By them another writer that deleted rows of the file meanwhile can delete these in the new file, instead of failing.
No protocol names them. Their meaning is that of all such commits in a real table (``test_delta_compaction_tags``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import orjson


def compaction_tags(output: str, kept: Sequence[int], deleted: Sequence[int]) -> list[dict[str, str]]:
    """The tags of each source of one new file, which holds the rows that they ``kept``, in order and nothing else.

    output : the new file's path, spelled as in its ``add``.
    deleted : rows that the deletion vectors of the sources named when they were read, and their removes still name.
    """
    starts = accumulate(kept, initial=0)
    return [
        {
            "compactedInto": orjson.dumps([output]).decode(),
            "compactionInfo": orjson.dumps(
                [{"rowOffsetInTarget": start, "sourceNumPhysicalRecords": rows + gone}]
            ).decode(),
        }
        for start, rows, gone in zip(starts, kept, deleted, strict=False)
    ]
