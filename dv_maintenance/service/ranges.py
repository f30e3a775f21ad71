"""The partitions that one run should process: those with work, merged into ranges. Pure functions of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# At most so many partitions without work between two with work: including them (a plan has no step for them) is cheaper
# than another run.
_BRIDGED = 7


def widest_range(order: Sequence[str], due: Iterable[str | None], columns: int = 1) -> tuple[str, str] | None:
    """First and last key of the range with the most due partitions; the others are left for later runs.

    ``None``: the whole table, since some of the work is in no known partition.

    order : every key that the orchestrator knows, in its order.
    columns : 2 if keys are cells of a grid. A range of a grid is the product of its columns' ranges.
    """
    wanted = frozenset(due)
    if not wanted <= set(order):
        return None
    if columns == 2:
        return _rectangle([_cell(key) for key in order], frozenset(_cell(key) for key in order if key in wanted))
    count, first, last = max(merged(order, wanted), key=lambda each: each[0], default=(0, "", ""))
    return (first, last) if count else None


def merged(order: Sequence[str], wanted: Iterable[str | None]) -> list[tuple[int, str, str]]:
    """(wanted keys in it, first, last) of each range, in order.

    >>> merged("abcdefghijklmnop", "acdn")
    [(3, 'a', 'd'), (1, 'n', 'n')]
    """
    wanted = frozenset(wanted)
    positions = [position for position, key in enumerate(order) if key in wanted]
    groups: list[list[int]] = []
    for position in positions:
        if groups and position - groups[-1][-1] <= _BRIDGED + 1:
            groups[-1].append(position)
        else:
            groups.append([position])
    return [(len(group), order[group[0]], order[group[-1]]) for group in groups]


def _cell(key: str) -> tuple[str, str]:
    across, down = key.split("|")
    return across, down


def _rectangle(order: Sequence[tuple[str, str]], due: frozenset[tuple[str, str]]) -> tuple[str, str] | None:
    """The rectangle of a grid with the most due cells. It spans all lines with due cells, or a single line if most
    of its cells would otherwise be without work.
    """
    columns = list(dict.fromkeys(across for across, _ in order))
    lines = list(dict.fromkeys(down for _, down in order))
    column_of, line_of = ({name: at for at, name in enumerate(names)} for names in (columns, lines))
    positions = sorted({line_of[down] for _, down in due})
    spans = {(each, each) for each in positions} | ({(positions[0], positions[-1])} if positions else set())
    found = []
    for top, bottom in spans:
        inside = [across for across, down in due if top <= line_of[down] <= bottom]
        for _, first, last in merged(columns, inside):
            left, right = column_of[first], column_of[last]
            count = sum(left <= column_of[each] <= right for each in inside)
            area = (right - left + 1) * (bottom - top + 1)
            if top == bottom or area <= (_BRIDGED + 1) * count:
                found.append((count, -area, -left, -top, (first, last, lines[top], lines[bottom])))
    if not found:
        return None
    first, last, high, low = max(found)[-1]
    return f"{first}|{high}", f"{last}|{low}"
