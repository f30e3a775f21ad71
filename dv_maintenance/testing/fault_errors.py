"""The errors that disks and object stores raise for each fault: those of the system and of obstore."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from dv_maintenance.testing.faults import Fault


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

        number = self.numbers.get(fault, errno.EIO)
        what = f"Unable to copy data to file: {os.strerror(number)} (os error {number})"
        return GenericError(f"Generic LocalFileSystem error: {what}\n\nDebug source:\nGeneric {{}}")


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
            return PermissionDeniedError(
                "The operation lacked the necessary privileges to complete for path x: Error performing PUT "
                "https://lake.example/x in 9ms - Server returned non-2xx status code: 403 Forbidden: "
                "<Error><Code>AccessDenied</Code></Error>"
            )
        return GenericError(f"Generic S3 error: {self.answers.get(fault, 'status code: 500 Internal Server Error')}")


DISK: Final = _Disk()
LOCAL_STORE: Final = _LocalStore()
REMOTE: Final = _Remote()
