"""What the catalogue says of a method. Nothing here imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method.

    Attributes:
        name: Its name on the command line.
        class_name: Its name in Python, as in `pl.SWAG`.
        paper: Authors and year.
        summary: What it does, in one line.
        bibtex: The paper, ready to cite.
    """

    name: str
    class_name: str
    paper: str
    summary: str
    bibtex: str
