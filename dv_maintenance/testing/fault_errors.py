"""The errors that disks and object stores raise for each fault: those of the system and of obstore."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from dv_maintenance.testing.faults import Fault

__all__ = ["DISK", "LOCAL_STORE", "REMOTE", "Errors"]


class Errors(ABC):
    """The errors of one kind of storage."""

    @abstractmethod
    def of(self, fault: Fault) -> Exception: ...


class _Disk(Errors):
    numbers: ClassVar[Mapping[Fault, int]] = {
        Fault.THROTTLE: errno.EAGAIN,
        Fault.FORBID: errno.EACCES,
        Fault.LOSE_ANSWER: errno.ETIMEDOUT,
        Fault.FULL: errno.ENOSPC,
        Fault.FULL_HALFWAY: errno.ENOSPC,
    }

    def of(self, fault: Fault) -> Exception:
        number = self.numbers.get(fault, errno.EIO)
        return OSError(number, os.strerror(number))


class _LocalStore(_Disk):
    def of(self, fault: Fault) -> Exception:
        from obstore.exceptions import GenericError

        return GenericError(f"Generic LocalFileSystem error: {super().of(fault)}")


class _Remote(Errors):
    answers: ClassVar[Mapping[Fault, str]] = {
        Fault.THROTTLE: "status code: 503 Service Unavailable: SlowDown",
        Fault.LOSE_ANSWER: "HTTP error: operation timed out",
        Fault.FULL: "status code: 507 Insufficient Storage",
        Fault.FULL_HALFWAY: "status code: 507 Insufficient Storage",
    }

    def of(self, fault: Fault) -> Exception:
        from obstore.exceptions import GenericError, PermissionDeniedError

        if fault is Fault.FORBID:
            return PermissionDeniedError("The operation lacked the necessary privileges: 403 Forbidden: AccessDenied")
        return GenericError(f"Generic S3 error: {self.answers.get(fault, 'status code: 500 Internal Server Error')}")


DISK: Final = _Disk()
LOCAL_STORE: Final = _LocalStore()
REMOTE: Final = _Remote()
