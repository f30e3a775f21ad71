"""The deletion vector (DV) core: sets of row positions, their wire formats, masks for Arrow. Bytes in, bytes out."""

from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.dv.reference import DvRef, Fetch
from dv_maintenance.dv.vector import DeletionVector

__all__ = ["DeletionVector", "DvDescriptor", "DvRef", "Fetch"]
