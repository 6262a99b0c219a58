"""A table as it stands in a file: named columns of text, nothing yet understood."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
SPELLINGS = {**{name: mark for mark, name in DELIMITERS.items()}, **{mark: mark for mark in DELIMITERS}, "\\t": "\t"}
LOOKED_AT = 200  # records from which the delimiter is found

# Compared in lower case. "none" is not among them: it is often an answer, as in "type of garage".
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})


def is_missing(text: str) -> bool:
    """Whether this text says that there is no value."""
    return text.lower() in MISSING


@dataclass(frozen=True)
class Table:
    """Columns of text by name, all of one length; spaces around values are gone.

    Attributes:
        name: The file's name without its folder.
        columns: The values of every column as text.
        layout: How the file was read, in words.
        delimiter: What separates values; empty where nothing does.
    """

    name: str
    columns: dict[str, list[str]]
    layout: str
    delimiter: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def rows(self, numbers: Sequence[int]) -> Table:
        """The table of these rows, in this order."""
        kept = {name: [values[i] for i in numbers] for name, values in self.columns.items()}
        return Table(self.name, kept, self.layout, self.delimiter)

    def column(self, name: str) -> list[str]:
        """A column's values, or an error that names the columns there are."""
        if name in self.columns:
            return self.columns[name]
        hint = ""
        if len(self.columns) == 1 and self.delimiter:
            only = next(iter(self.columns))
            hint = f"; with {DELIMITERS[self.delimiter]} as delimiter the whole header is one column, {only!r}"
            hint += ": try --delimiter auto" if any(mark in only for mark in DELIMITERS) else ""
        raise ValueError(f"{self.name} has no column {name!r}; its columns are {listed(self.columns)}{hint}")


def listed(names: Sequence[str] | dict[str, list[str]], most: int = 12) -> str:
    """Names as a reader wants them: quoted, and not hundreds."""
    shown = ", ".join(repr(name) for name in itertools.islice(names, most))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def read_table(path: str | Path, delimiter: str = "auto", encoding: str = "utf-8") -> Table:
    """Read a CSV file, or a Parquet file where pandas can.

    Args:
        path: The file; `.parquet` and `.pq` are read as Parquet.
        delimiter: "auto" to find it, a comma, semicolon, tab or bar, or its name.
        encoding: Of a CSV's text; a byte-order mark is skipped.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path)
    text = _decoded(path, encoding)
    if not text.strip():
        raise ValueError(f"{path.name} is empty; it needs a line of column names and rows below it")
    mark = _found_delimiter(text) if delimiter == "auto" else _named_delimiter(delimiter)
    header, rows = _records(path.name, text, mark)
    if not rows:
        raise ValueError(f"{path.name} has column names but no rows")
    columns = dict(zip(header, (list(column) for column in zip(*rows, strict=True)), strict=True))
    how = "found" if delimiter == "auto" else "given"
    return Table(path.name, columns, f"CSV, {DELIMITERS[mark]}-separated ({how})", mark)


# --- text ---


def _decoded(path: Path, encoding: str) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise ValueError(
            f"encoding must be one that Python knows, such as utf-8 or latin-1, got {encoding!r}"
        ) from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path.name} is not {encoding} text: byte 0x{raw[error.start]:02x} in line {line}; "
            "say what it is, as in --encoding latin-1 (or cp1252, utf-16)"
        ) from None


def _named_delimiter(given: str) -> str:
    if given not in SPELLINGS:
        raise ValueError(
            f"delimiter must be auto, {', '.join(DELIMITERS.values())} or the character itself, got {given!r}"
        )
    return SPELLINGS[given]


def _found_delimiter(text: str) -> str:
    """The candidate under which most records are as wide as the header; of those, the widest. A lone column: comma."""

    def merit(mark: str) -> tuple[float, int]:
        try:
            widths = [
                len(r)
                for r in itertools.islice(csv.reader(io.StringIO(text, newline=""), delimiter=mark), LOOKED_AT)
                if r
            ]
        except csv.Error:
            return 0.0, 0
        if not widths or widths[0] < 2:
            return 0.0, 0
        return sum(w == widths[0] for w in widths) / len(widths), widths[0]

    return max(DELIMITERS, key=merit)  # the first of equals, so a comma where nothing separates


def _records(name: str, text: str, mark: str) -> tuple[list[str], list[list[str]]]:
    # strict: a quote that never closes would otherwise swallow the rest of the file without a word.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
    rows: list[list[str]] = []
    header: list[str] = []
    try:
        for record in reader:
            if not record:
                continue  # an empty line
            if not header:
                header = _checked_header(name, record)
            elif len(record) != len(header):
                raise ValueError(
                    f"{name}, line {reader.line_num}: {len(record)} values under {len(header)} column names "
                    f"({DELIMITERS[mark]}-separated); quote values that contain the delimiter, or give --delimiter"
                )
            else:
                rows.append([value.strip() for value in record])
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: not CSV ({error}); is a quote left open?") from None
    return header, rows


def _checked_header(name: str, record: list[str]) -> list[str]:
    names = [value.strip() or f"column {i}" for i, value in enumerate(record, 1)]
    repeated = [column for column, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{name}: the column name {repeated[0]!r} occurs {names.count(repeated[0])} times; rename all but one"
        )
    return names


# --- Parquet ---


def _read_parquet(path: Path) -> Table:
    try:
        import pandas
    except ImportError:
        raise ValueError(f"{path.name} is Parquet, which needs pandas: pip install 'plausible[parquet]'") from None
    try:
        frame = pandas.read_parquet(path)
    except ImportError:
        raise ValueError(f"{path.name} is Parquet, which needs pyarrow: pip install 'plausible[parquet]'") from None
    except Exception as error:  # noqa: BLE001 - whatever the engine raises, the file is what is wrong
        raise ValueError(f"{path.name} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    if not len(frame.columns) or not len(frame):
        raise ValueError(f"{path.name} has no rows")
    names = _checked_header(path.name, [str(column) for column in frame.columns])
    columns = {}
    for name, column in zip(names, frame.columns, strict=True):
        series = frame[column]
        present = series.notna()
        columns[name] = [
            _as_text(value) if there else "" for value, there in zip(series.tolist(), present, strict=True)
        ]
    return Table(path.name, columns, "Parquet")


def _as_text(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    return (value.isoformat() if hasattr(value, "isoformat") else str(value)).strip()
