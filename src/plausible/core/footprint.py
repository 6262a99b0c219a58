"""How much memory a computation makes."""

from __future__ import annotations

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Footprint(TorchDispatchMode):
    """Notes the bytes of all tensors that operations make, and of the largest (a view makes none)."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for t in pytree.tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in known:
                size = t.numel() * t.element_size()
                self.largest, self.total = max(self.largest, size), self.total + size
        return out
