"""Captured steps as seen from Python."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgpack

from unisono import _native
from unisono.errors import ConfigurationError

if TYPE_CHECKING:
    from unisono._capture import Capture


class StepGraph:
    """A captured training step: one flat, functional graph of ATen operations with global shapes."""

    def __init__(self, message: bytes, capture: Capture | None = None) -> None:
        """Wraps what :func:`unisono.capture` found: the graph as MessagePack and, where it is new, how to talk to it."""
        self.message, self._capture = message, capture

    @property
    def capture(self) -> Capture:
        """How to talk to the graph.

        Raises:
            ConfigurationError: it comes from the folder of an earlier capture, and stands for itself.
        """
        if self._capture is None:
            raise ConfigurationError(
                "a graph that was kept has no capture", code="U0120", hint="capture without `cache`"
            )
        return self._capture

    @functools.cached_property
    def native(self) -> _native.Graph:
        """The graph as the core holds it, decoded once."""
        return _native.Graph(self.message)

    def text(self) -> str:
        """The text form of the graph."""
        return self.native.text()

    def fingerprint(self) -> str:
        """What identifies the graph: of what it computes, whatever the lines of the code are."""
        return self.native.fingerprint()

    def decoded(self) -> dict[str, Any]:
        """The graph as plain Python data, with the field names of crate ``ir``."""
        return msgpack.unpackb(self.message)["graph"]
