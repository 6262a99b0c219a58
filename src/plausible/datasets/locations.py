"""Where data sets and what took long to find lie, and what to say when a data set does not."""

import os
from dataclasses import dataclass
from pathlib import Path

Root = str | Path | None


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a reader looks for.

    Attributes:
        files: what to download, in words.
        source: the page that has it.
        place: where it belongs, relative to the root.
    """

    files: str
    source: str
    place: str

    def missing(self, path: Path) -> FileNotFoundError:
        """The error for something that is not there: what to download, and where to put it."""
        return FileNotFoundError(
            f"{path} is missing; download {self.files} from {self.source} to {self.place}/ in the folder that root= "
            f"names, or PLAUSIBLE_DATA where root= is not given"
        )

    def folder(self, root: Root) -> Path:
        """The folder of this data set, which must exist."""
        folder = self.root(root) / self.place
        if not folder.is_dir():
            raise self.missing(folder)
        return folder

    def root(self, root: Root) -> Path:
        """The folder of all data sets."""
        given = os.environ.get("PLAUSIBLE_DATA", "") if root is None else root
        if not str(given):
            raise FileNotFoundError(
                f"no folder of data sets; pass root= or set PLAUSIBLE_DATA to one, and download {self.files} from "
                f"{self.source} to {self.place}/ there"
            )
        return Path(given)


def checked_limit(limit: int | None) -> int | None:
    """The limit itself, or an error that names it."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an integer or None, got {limit!r}")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    return limit


def cache_folder(cache: str | Path | None) -> Path:
    """The given folder, PLAUSIBLE_CACHE, or ~/.cache/plausible."""
    given = os.environ.get("PLAUSIBLE_CACHE", "") if cache is None else cache
    return Path(given) if str(given) else Path.home() / ".cache" / "plausible"
