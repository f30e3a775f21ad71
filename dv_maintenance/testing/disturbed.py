"""Random histories in which the storage fails during maintenance: see ``stateful`` and ``faults``.

The environment variable ``DVM_FAULTS`` sets the number of histories.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.faults import Fault, Faults
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.stateful import HISTORIES, TableHistories
from dv_maintenance.testing.trials import ORPHAN_AGE
from dv_maintenance.testing.verbs import deletion, verbs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dv_maintenance.testing.backends import TableBackend

_COUNT: Final = int(os.environ.get("DVM_FAULTS", "0"))
DISTURBED = settings(HISTORIES, max_examples=_COUNT or 1, stateful_step_count=20 if _COUNT else 6)

_SEEDS = st.integers(0, 2**32 - 1)
_RATES = st.sampled_from([0.1, 0.03, 0.3])
# Verbs after which a history can continue: after a log cleanup, lite vacuums are refused for a while.
_VERBS: Final = ("purge", "optimize", "zorder", "vacuum", "vacuum --lite", "checkpoint")


class DisturbedHistories(TableHistories):
    """Whatever the storage does, a verb is done or not done, as it reports. It succeeds when it is run again, and
    leaves only files that a vacuum finds once they are old.
    """

    @rule(seed=_SEEDS, rate=_RATES, name=st.sampled_from(_VERBS))
    def disturbed(self, seed: int, rate: float, name: str) -> None:
        backend = self.history.backend
        verb = next((each for each in verbs_of(backend) if each.name == name), None)
        if verb is None:
            return
        # A listing that is late by a whole retention does not occur in practice.
        late = {Fault.LATE_LIST} if "vacuum" in name else set[Fault]()
        if late:
            self._let_time_pass(0)
        now = self._now
        self._run(lambda: verb.run(backend, now), Faults(seed, rate, frozenset(Fault) - late))
        verb.run(backend, now)
        self._done()

    @precondition(lambda self: any(verb.name == "delete" for verb in verbs_of(self.history.backend)))
    @rule(seed=_SEEDS, rate=_RATES, every=st.sampled_from([7, 5, 3, 2]))
    def deleted_disturbed(self, seed: int, rate: float, every: int) -> None:
        gone = {number for number in self.history.rows if number % every == 0}
        left = {number: row for number, row in self.history.rows.items() if number not in gone}
        delete: Callable[[TableBackend, int], object] = deletion(gone)
        script = Faults(seed, rate, frozenset(Fault))
        ended = self._run(lambda: delete(self.history.backend, 0), script, [left[number] for number in sorted(left)])
        if not ended:
            delete(self.history.backend, 0)
        self.history.changed(left)
        self._done()

    def _run(self, work: Callable[[], object], script: Faults, after: object = None) -> bool:
        """Run with faults. Returns whether the work was reported as done."""
        error = None
        with injected(script):
            try:
                work()
            except DvMaintenanceError as raised:
                error = raised
        found = self.history.read()
        if error is None and after is not None:
            assert found == after, "it was reported as done"
        assert found in (self.history.expected(), after), error
        return error is None

    @invariant()
    def no_file_is_left_behind(self) -> None:
        """Files are left until they are old: see ``teardown``."""

    def teardown(self) -> None:
        self._let_time_pass(0)
        vacuum(self.history.table, VacuumRequest(now=self._now + ORPHAN_AGE))
        self.history.sync()
        super().teardown()
