"""What was made for inputs of one shape, kept as long as such inputs come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

KEPT = 256  # sentences have a shape for every length; each plan takes some kilobytes


class Recent(OrderedDict[Any, Any]):
    """A dictionary that forgets what was asked for the longest time ago."""

    def get_or_make(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of a key, made where there is none."""
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > KEPT:
            self.popitem(last=False)
        return self[key]
