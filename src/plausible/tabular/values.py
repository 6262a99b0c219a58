"""What a text means: a number, a date, or neither."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

# Plain decimal notation. float() alone would also take "1_000", "inf" and digits of other scripts.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
SEPARATED = re.compile(r"[+-]?\d{1,3}([,.' ]\d{3})+([.,]\d+)?|[+-]?\d+,\d+", re.ASCII)

# In the order of preference: where a column fits two, as 03/04/2024 does, the first is taken and that is said.
DATE_FORMATS = ("ISO", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")


def number(text: str) -> float | None:
    """The number this text writes, or None; numbers beyond a float's range are none."""
    if not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def looks_separated(text: str) -> bool:
    """Whether this is a number with thousands separators or a decimal comma, which are not read as numbers."""
    return bool(SEPARATED.fullmatch(text)) and number(text) is None


def date(text: str, form: str) -> datetime | None:
    """The date this text writes in a format of `DATE_FORMATS`, or None; with a time zone it is moved to UTC."""
    try:
        if form == "ISO":
            if len(text) < 10 or text[4] != "-":  # fromisoformat also takes 20240131, which is a number
                return None
            value = datetime.fromisoformat(text)
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return datetime.strptime(text, form)
    except (ValueError, OverflowError):
        return None


def fitting_date_formats(texts: Sequence[str]) -> list[str]:
    """The formats in which every text is a date."""
    return [form for form in DATE_FORMATS if texts and all(date(text, form) is not None for text in texts)]


def all_numbers(texts: Sequence[str]) -> bool:
    """Whether every text is a number."""
    return all(number(text) is not None for text in texts)
