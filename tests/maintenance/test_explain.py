"""The words a plan is told in."""

from __future__ import annotations

from test_plan import MIB, file, table

from dv_maintenance.maintenance.planning.explain import explain, recoded
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import Recoding


def test_a_plan_in_words() -> None:
    plan = build_plan(
        table(
            file("dirty", deleted=500, partition="p=1"),
            file("small", size=MIB, partition="p=1"),
            file("dead", deleted=1000, partition="p=2"),
            file("fine", partition="p=2"),
            file("later", size=200 * MIB, deleted=300, partition="p=3"),
        ),
        Policy(max_tasks=1),
    )
    assert explain(plan) == (
        "# Maintenance of file:///t\n"
        "\n"
        "A memory table at version 7.\n"
        "\n"
        "- Files: 3 become about 1\n"
        "- Deletion vectors removed: 2\n"
        "- Deleted rows purged: 1,500\n"
        "- Bytes: 513 MiB become about 129 MiB\n"
        "- Cost: 257 MiB read, about 129 MiB written, in 1 task\n"
        "- The old files stay on disk until their retention has passed and a vacuum deletes them.\n"
        "\n"
        "## Steps, most useful first\n"
        "\n"
        "- **step-1** remove in p=2: every row of 1 file is deleted: nothing to read, nothing to write; "
        "purges 1,000 rows\n"
        "- **step-2** rewrite in p=1: 1 file with more than 5 % of the rows deleted, 1 file too small to keep: "
        "rewrite into one new file; purges 500 rows; reads 257 MiB, writes about 129 MiB\n"
        "\n"
        "## Left alone\n"
        "\n"
        "- 1 file (256 MiB): no deletion vector, and at least 192 MiB of live rows (`fine`)\n"
        "- 1 file (200 MiB, 300 deleted rows): over the daily limit: max_tasks is 1 (`later`)\n"
    )


def test_a_long_plan_is_cut_but_counted() -> None:
    files = [file(f"f{n:03}", deleted=900, partition=f"p={n}") for n in range(60)]
    text = explain(build_plan(table(*files)))
    assert text.count("- **step-") == 50
    assert "- ... and 10 more, reading 2.5 GiB" in text


def test_nothing_to_do() -> None:
    assert "Nothing to do." in explain(build_plan(table(file("fine")), purge=True))


def test_what_another_codec_changes() -> None:
    changes = [
        Recoding("snappy", "zstd", 100 * MIB, 70 * MIB),
        Recoding("zstd", "none", 10 * MIB, 20 * MIB),
        Recoding("snappy", "zstd", 300 * MIB, 210 * MIB),
        Recoding("gzip", "zstd", 1000, 1001),
    ]
    assert list(recoded(changes)) == [
        "zstd instead of gzip: about the same size",
        "zstd instead of snappy: about 30 % smaller, 120 MiB",
        "no compression instead of zstd: about 100 % larger, 10 MiB",
    ]
