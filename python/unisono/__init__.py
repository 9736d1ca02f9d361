"""Write a PyTorch training step for one device; it runs on many."""

from unisono import errors
from unisono._native import __version__

__all__ = ["__version__", "errors"]
