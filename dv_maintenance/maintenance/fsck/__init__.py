"""Whether the files that readers of a version open exist and are intact, and how to repair the table if not."""

from dv_maintenance.maintenance.fsck.check import FEW, damage_of, fsck
from dv_maintenance.maintenance.fsck.look import Looked, look
from dv_maintenance.maintenance.fsck.report import Damage, FsckReport

__all__ = ["FEW", "Damage", "FsckReport", "Looked", "damage_of", "fsck", "look"]
