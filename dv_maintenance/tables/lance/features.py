"""Feature flags: what a table requires of its readers and writers.

Format: ``reader_feature_flags`` and ``writer_feature_flags`` of the manifest. A client that does not know a flag must
not use the table, so flags that are not listed here are refused.
"""

from __future__ import annotations

from typing import Final

from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.tables.lance.log.manifest import Fragment, Manifest

DELETION_FILES: Final = 1
STABLE_ROW_IDS: Final = 2
_OVERLAYS: Final = 64
_TREE: Final = 4096
MANAGED_BLOBS: Final = 16384

# None of these changes which fragments, files and deletions a manifest lists.
_READABLE: Final = {
    DELETION_FILES: "deletion files",
    STABLE_ROW_IDS: "stable row ids",
    4: "data files of version 2",
    8: "table config",
    16: "base paths",
    32: "no transaction files",
    128: "indices with covering columns",
    256: "data files of mixed versions",
    1024: "fragment reuse history",
    # Hidden columns of the fragment's own data files hold what manifests otherwise hold.
    2048: "row ids and row versions in data files",
    MANAGED_BLOBS: "managed blobs",
    # Lance's library assigns the ids, and it refuses a manifest with this flag for readers.
    32768: "field ids that are not used again",
}
# Only for messages: the effect of these flags is unknown here, or known to matter.
_OTHERS: Final = {
    _OVERLAYS: "data overlay files",
    512: "fragment reuse history with stable row ids",
    _TREE: "fragment tree",
    8192: "indices that declare covering columns apart from their keys",
    65536: "zone write seeds",
    131072: "clustering definitions and metadata of fragments",
}
_NAMES: Final = {**_READABLE, **_OTHERS}
_NEWER: Final = "use a newer release of this tool, or Lance itself"


def flag_names(flags: int) -> tuple[str, ...]:
    """The flags of a bit set, in order: ``deletion files``, or ``flag 262144`` for an unknown one."""
    bits = (1 << bit for bit in range(flags.bit_length()) if flags >> bit & 1)
    return tuple(_NAMES.get(bit, f"flag {bit}") for bit in bits)


def check_readable(manifest: Manifest, table: str) -> None:
    """Refuse a table that cannot be read.

    Raises
    ------
    UnsupportedFeatureError : names the unsupported flags.
    """
    unknown = manifest.reader_flags & ~sum(_READABLE)
    if manifest.has_tree:
        unknown |= _TREE
    if unknown:
        raise _unsupported(unknown, manifest, table)


def check_no_overlays(fragments: tuple[Fragment, ...], manifest: Manifest, table: str) -> None:
    """Refuse data overlay files that no flag announces: without them, outdated values would be read.

    Raises
    ------
    UnsupportedFeatureError : a fragment has data overlay files.
    """
    if any(fragment.overlays for fragment in fragments):
        raise _unsupported(_OVERLAYS, manifest, table)


def check_writer_flags(manifest: Manifest, table: str) -> None:
    """Refuse to change a table with writer flags that are unknown here.

    Raises
    ------
    UnsupportedFeatureError : names the unsupported flags.
    """
    unknown = manifest.writer_flags & ~sum(_READABLE)
    if unknown:
        raise _unsupported(unknown, manifest, table, "changed", "writer")


def check_cleanable(manifest: Manifest, table: str) -> None:
    """Refuse a version whose files cannot be determined.

    Raises
    ------
    UnsupportedFeatureError : names the flags.
    """
    check_readable(manifest, table)
    check_writer_flags(manifest, table)


def _unsupported(
    flags: int, manifest: Manifest, table: str, done: str = "read", kind: str = "reader"
) -> UnsupportedFeatureError:
    names = flag_names(flags)
    numbers = ", ".join(str(1 << bit) for bit in range(flags.bit_length()) if flags >> bit & 1)
    return UnsupportedFeatureError(
        f"the table needs features that this release can't {done}: {', '.join(names)} ({kind} flags {numbers})",
        features=names,
        table=table,
        version=manifest.version,
        next_step=_NEWER,
    )
