"""Whether the files that readers of a version open exist and are intact, and how to repair the table if not."""

from dv_maintenance.maintenance.fsck.check import FEW, damage_of, fsck
from dv_maintenance.maintenance.fsck.quick import QuickCheck, quick_check
from dv_maintenance.maintenance.fsck.report import Damage, FsckReport

__all__ = ["FEW", "Damage", "FsckReport", "QuickCheck", "damage_of", "fsck", "quick_check"]
