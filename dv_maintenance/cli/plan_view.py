"""A plan on a terminal: totals, steps by reason, as many as fit on the screen. Only this module imports rich."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dv_maintenance.service.plan_view import PlanView, StepTable

_LEAST: Final = 3
"""Steps of a group that are shown on the smallest screen."""
_AROUND_A_TABLE: Final = 5  # an empty line, title, head, rule, what is not shown


def show_plan(plan: PlanView, stream: IO[str], *, every_step: bool) -> None:
    """Print the plan. ``every_step``: not only as many as fit on the screen."""
    console = Console(file=stream, highlight=False)
    console.print(Text(plan.title, style="bold"), overflow="fold")
    for line in plan.head:
        console.print(Text(line))
    around = len(plan.head) + len(plan.left_alone) + 4 + _AROUND_A_TABLE * len(plan.groups)
    share = max(_LEAST, (console.height - around) // max(len(plan.groups), 1))
    for group in plan.groups:
        console.print()
        _show_group(console, group, len(group.rows) if every_step else share)
    if plan.left_alone:
        console.print()
        console.print(Text("Left alone", style="bold"))
        for line in plan.left_alone:
            console.print(Text(f"  {line}"), overflow="fold")


def _show_group(console: Console, group: StepTable, shown: int) -> None:
    console.print(Text(group.title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    for number, name in enumerate(group.columns):
        if number in group.words:
            table.add_column(name, overflow="fold", no_wrap=number == 0)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in group.rows[:shown]:
        table.add_row(*map(Text, row))
    console.print(table)
    if more := group.more_after(shown):
        console.print(Text(f"{more}: --all shows them", style="dim"))
