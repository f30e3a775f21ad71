"""Whether the values of a column are the same after its type was changed.

Paimon's readers cast what older files hold: to a shorter text, to fewer digits of a second, to another type altogether.
Here values are never cast. They are read if the cast would change none of them.
"""

from __future__ import annotations

from typing import Final

from dv_maintenance.tables.paimon.rows.types import DataType

# Integer types from the narrowest to the widest, with the decimal digits that hold what files store: Avro has no
# narrower integer than INT, and `widening` takes one digit more for BIGINT, as Delta does.
_DIGITS: Final = {"TINYINT": 10, "SMALLINT": 10, "INT": 10, "BIGINT": 20}
_ORDER: Final = list(_DIGITS)
# Types of text or bytes -> the one of these that is not padded.
_UNPADDED: Final = {"CHAR": "VARCHAR", "VARCHAR": "VARCHAR", "BINARY": "VARBINARY", "VARBINARY": "VARBINARY"}


def same_values(old: DataType, new: DataType) -> bool:
    """Whether Paimon reads each value of the type ``old`` as the same value of the type ``new``.

    Rows are not compared: their fields are columns of their own.
    """
    if old.root in _DIGITS:
        if new.root == "DECIMAL":
            return new.precision - new.scale >= _DIGITS[old.root]
        if new.root == "DOUBLE":
            return old.root != "BIGINT"
        return new.root in _DIGITS and _ORDER.index(old.root) <= _ORDER.index(new.root)
    if (old.root, new.root) == ("FLOAT", "DOUBLE"):
        return True
    if _UNPADDED.get(old.root) == new.root:
        return old.precision <= new.precision
    if old.root != new.root:
        return False
    if old.root == "DECIMAL":
        return 0 <= new.scale - old.scale <= new.precision - old.precision
    if old.root in {"TIMESTAMP", "TIMESTAMP_LTZ"}:
        return old.precision <= new.precision
    if old.root == "MAP":
        # Paimon casts no keys.
        (old_key, old_value), (new_key, new_value) = old.parts, new.parts
        return _alike(old_key.type, new_key.type) and same_values(old_value.type, new_value.type)
    if old.root == "ARRAY":
        return same_values(old.parts[0].type, new.parts[0].type)
    return _alike(old, new)


def _alike(old: DataType, new: DataType) -> bool:
    """Whether the types are the same, but for NOT NULL."""
    if (old.root, old.precision, old.scale, len(old.parts)) != (new.root, new.precision, new.scale, len(new.parts)):
        return False
    return all(_alike(one.type, other.type) for one, other in zip(old.parts, new.parts, strict=True))
