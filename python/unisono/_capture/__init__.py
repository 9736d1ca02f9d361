"""Capture: an ordinary training step as one flat, functional graph of ATen operations."""

from unisono._capture.capture import Capture, capture_step

__all__ = ["Capture", "capture_step"]
