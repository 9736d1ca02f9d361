"""A rank's shard of a tensor in several blocks, piece by piece, as ``torch.distributed.checkpoint`` reads and writes it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from unisono._placements import Piece


class Pieces(torch.Tensor):
    """A tensor of the global shape of which the rank has some pieces. Nothing can be computed with it.

    PyTorch's checkpoints ask a tensor for what they need by three methods, which ``DTensor`` has too.
    """

    _shard: torch.Tensor
    _pieces: dict[tuple[int, ...], Piece]

    @staticmethod
    def __new__(cls, shape: torch.Size, shard: torch.Tensor, pieces: list[Piece]) -> Pieces:
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=shard.dtype, device=shard.device)
        made._shard, made._pieces = shard, {piece.offsets: piece for piece in pieces}
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses everything."""
        raise TypeError(f"{func} on a tensor that is only read and written by checkpoints")

    def __create_write_items__(self, name: str, _unused: object) -> list[WriteItem]:
        """What is to be written."""
        properties = TensorProperties.create_from_tensor(self._shard)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Where the pieces are in the global tensor."""
        return [ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)) for one in self._pieces.values()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The memory of a piece."""
        return self._pieces[tuple(index.offset or ())].of(self._shard)
