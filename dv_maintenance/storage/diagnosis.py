"""What failed in a disk or an object store, in words that are safe to print.

A client's own text quotes signed URLs, headers and answers, so nothing of it is passed on but what is known to be safe:
host, HTTP status, the provider's error code, the system's error number.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from dv_maintenance.remedies import Remedy, option

_USUAL: Final = "check the network, the permissions and the storage options, then run again"
_KEYS: Final[Mapping[str, Remedy]] = {
    "S3": Remedy(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give {} and {}; for a public bucket {}",
        (
            option("aws_access_key_id", "..."),
            option("aws_secret_access_key", "..."),
            option("aws_skip_signature", "true"),
        ),
    ),
    "GCS": Remedy(
        "set GOOGLE_APPLICATION_CREDENTIALS, or give {}; for a public bucket {}",
        (option("google_service_account", "FILE"), option("google_skip_signature", "true")),
    ),
    "MicrosoftAzure": Remedy(
        "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and its secret, or give them as "
        "storage options: {}; for a public container {}",
        (option("azure_storage_account_key", "..."), option("azure_skip_signature", "true")),
    ),
}
_REGION: Final = Remedy("set AWS_REGION to the bucket's region, or give {}", (option("aws_region", "REGION"),))
_HTTP: Final = option("allow_http", "true")
_SCHEMES: Final = "use a path, or a URI that begins with s3://, gs://, az://, abfss:// or https://"

# Statuses without a rule of their own: what to do.
_STATUS: Final = {
    "400": "check the bucket's name, the region and the storage options",
    "401": "check the credentials: they may be wrong or expired",
    "403": "check that these credentials may list, read and, for maintenance, write and delete below the table",
    "404": "check the bucket's or container's name, and the endpoint if there is one",
    "429": "the store limits requests: wait, then run again",
    "503": "the store is busy or limits requests: wait, then run again",
}
_CODES: Final[Mapping[str, str | Remedy]] = {
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "RequestTimeTooSkewed": "correct this machine's clock",
    "ExpiredToken": "the session token is expired: get new credentials",
    "InvalidAccessKeyId": "check the access key and the endpoint: the store does not know the key",
    "SignatureDoesNotMatch": "check the secret key",
}
_RENAME: Final = "rename the folder or the file"
_ERRNO: Final = {
    errno.EROFS: "mount the file system for writing",
    errno.EACCES: "check the permissions of this user on the folder",
    errno.EPERM: "check the permissions of this user on the folder",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, or raise the system's limit of open files",
    errno.ENOMEM: "give the process more memory",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EIO: "check the disk or the network file system",
    errno.ESTALE: "mount the network file system again",
}

# None of these passes by itself. Others may free space, but until then each attempt takes what is left of it.
_PERMANENT_ERRNO: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP),
    }
)
_PERMANENT_STATUS: Final = frozenset({"301", "400", "401", "403", "404", "405", "413", "507"})
# Conditions that pass, although stores report them with one of those statuses.
_PASSING: Final = re.compile(r"[rR]ateLimitExceeded|RequestTimeout\b|OperationAborted|IncompleteBody|BadDigest")
# The client repeated a request that had no answer, and that may have had an effect.
_REPEATED: Final = re.compile(r"\bafter [1-9]\d* retr")


class Diagnosis(NamedTuple):
    """``what``: a clause. ``next_step``: an imperative. ``permanent``: the call had no effect, and will fail again."""

    what: str
    next_step: str | Remedy
    permanent: bool = False


def diagnose(error: BaseException) -> Diagnosis:
    """What failed and what to do, from an error of the system or of obstore."""
    if isinstance(error, OSError) and error.errno is not None:
        return _of_system(error.errno)
    # obstore has no class for what a disk answers: only the number, in its text.
    if number := _first(r"^Generic LocalFileSystem error: [^\n]*\(os error (\d{1,4})\)", str(error)):
        return _of_system(int(number))
    text, kind = str(error), type(error).__name__
    found = _of_client(text)
    if found is None and (number := _first(r"\(os error (\d{1,4})\)", text)):  # as Lance quotes it
        found = _of_system(int(number))
    found = found or Diagnosis(kind, _USUAL, kind in {"PermissionDeniedError", "UnauthenticatedError"})
    return found._replace(permanent=found.permanent and not _REPEATED.search(text))


def _of_system(number: int) -> Diagnosis:
    name = errno.errorcode.get(number, str(number))
    return Diagnosis(f"{os.strerror(number)} ({name})", _ERRNO.get(number, _USUAL), number in _PERMANENT_ERRNO)


def _of_client(text: str) -> Diagnosis | None:
    if key := _first(r"Configuration key: '([A-Za-z0-9_.-]{1,60})' is not valid", text):
        return Diagnosis(
            f"unknown storage option {key!r}",
            "check its spelling; obstore's documentation lists the options of each store",
        )
    if illegal := _first(r'Encountered illegal character sequence "([^"]{1,20})" whilst parsing path', text):
        return Diagnosis(f"the path has {illegal!r}, which the storage library does not take", _RENAME, permanent=True)
    if scheme := _first(r'Unable to recognise URL "([A-Za-z][A-Za-z0-9+.-]*):', text):
        no_bucket = scheme in {"s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"}
        return Diagnosis("the URI names no bucket" if no_bucket else f"{scheme}:// is not supported", _SCHEMES)
    if "Account must be specified" in text:
        return Diagnosis(
            "the storage account is missing",
            Remedy(
                "write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/..., set AZURE_STORAGE_ACCOUNT_NAME, or give {}",
                (option("azure_storage_account_name", "ACCOUNT"),),
            ),
        )
    if reason := _first(r"Unable to open service account file from .*?: ([A-Za-z ]{1,60}) \(os error", text):
        return Diagnosis(f"the file with the service account can't be opened: {reason}", _KEYS["GCS"])
    store = _first(r"Generic (\w+) error", text) or ""
    # Where a virtual machine asks for the credentials of its role.
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return Diagnosis("no credentials were found", _KEYS.get(store, "pass credentials as storage options"))
    return _of_answer(text) or _of_connection(text)


def _of_answer(text: str) -> Diagnosis | None:
    """The store answered."""
    if "redirect without LOCATION" in text:
        return Diagnosis("the bucket is in another region", _REGION, permanent=True)
    status = re.search(r"status code: (\d{3}) ([A-Z][A-Za-z ]{1,40})", text)
    if status is None:
        return None
    code = _first(r"<Code>(\w{1,60})</Code>", text) or _first(r'"code":\s*"(\w{1,60})"', text)
    what = f"HTTP {status[1]} {status[2].strip()}" + (f" ({code})" if code else "")
    permanent = status[1] in _PERMANENT_STATUS and not _PASSING.search(text)
    return Diagnosis(what, _CODES.get(code or "") or _STATUS.get(status[1], _USUAL), permanent)


def _of_connection(text: str) -> Diagnosis | None:
    """No answer came."""
    host = _first(r"Error performing [A-Z]+ \w+://(?:[^/\s@?]*@)?([\w.:\[\]-]{1,120})", text)
    if host is None:
        return None
    if "BadScheme" in text or "builder error" in text:
        return Diagnosis(f"{host} would be reached without TLS", Remedy("give {} if that is intended", (_HTTP,)))
    signs: tuple[tuple[str, str, str | Remedy], ...] = (
        ("dns error", f"the host {host} is unknown", "check the endpoint's or the account's name, and the network"),
        ("Connection refused", f"{host} refused the connection", "check the endpoint and its port"),
        ("InvalidContentType", f"{host} does not speak TLS", Remedy("write http:// and give {}", (_HTTP,))),
        ("certificate", f"the certificate of {host} is not trusted", "install the certificate of its authority"),
        ("timed out", f"{host} did not answer in time", _USUAL),
        ("TimedOut", f"{host} did not answer in time", _USUAL),
    )
    for sign, what, step in signs:
        if sign in text:
            return Diagnosis(what, step)
    return Diagnosis(f"{host} can't be reached", _USUAL)


def without_answers(text: str) -> str:
    """The client's text without what the store answered, which may quote keys and signatures."""
    first = text.partition("\n\nDebug source")[0]
    return re.sub(r"(status code: \d{3}[A-Za-z ]*):.*", r"\1", first, flags=re.DOTALL)


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.DOTALL)
    return match[1] if match else None
