"""Averages along a run."""

from .multiswag import MultiSWAG
from .swag import SWAG

__all__ = ["SWAG", "MultiSWAG"]
