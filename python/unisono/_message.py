"""MessagePack, the form in which data crosses between Python and Rust and between ranks."""

from __future__ import annotations

from typing import Any

import msgpack


def pack(data: Any) -> bytes:
    """Plain data as a message."""
    message = msgpack.packb(data, use_bin_type=True)
    assert message is not None
    return message


def unpack(message: bytes) -> Any:
    """The plain data of a message."""
    return msgpack.unpackb(message, strict_map_key=False)
