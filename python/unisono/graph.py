"""Captured steps as seen from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from unisono._capture import Capture


class StepGraph:
    """A captured training step: one flat, functional graph of ATen operations with global shapes."""

    def __init__(self, capture: Capture) -> None:
        """Wraps what :func:`unisono.capture` found."""
        self.capture = capture

    @property
    def message(self) -> bytes:
        """The graph as MessagePack."""
        return self.capture.message

    def decoded(self) -> dict[str, Any]:
        """The graph as plain Python data, with the field names of crate ``ir``."""
        return msgpack.unpackb(self.message)
