"""Whether all ranks are given the same: inputs of the same kinds at the start, and at some steps the same batch, learning rates and random
numbers, of which one small collective compares hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from unisono._capture.inputs import StepInputs
from unisono._capture.places import warn_user
from unisono._ranks import Ranks
from unisono.errors import StepError

#: Maximum bytes of a tensor that are hashed; of a larger one, equal blocks from its first to its last byte.
SAMPLED_BYTES = 1 << 20
_BLOCKS = 256

_GENERATOR = "rng."


def generator(kind: str) -> str:
    """The name that the state of PyTorch's random number generator of a kind of device has among the inputs."""
    return f"{_GENERATOR}{kind}"


def described(inputs: StepInputs) -> dict[str, str]:
    """What each input is, by its name, and the values of arguments that are no tensors."""
    tensors = {item.name: f"{item.tensor.dtype} of shape {list(item.tensor.shape)}" for item in inputs.inputs}
    return tensors | {f"batch.{path}": repr(value) for path, value in inputs.constants.items()}


def require_alike(mine: dict[str, str], rank: int, expected: dict[str, str]) -> None:
    """Raises if the inputs of a rank are not described as those of rank 0."""
    for name in [*expected, *mine]:
        if mine.get(name) != expected.get(name):
            raise StepError(
                f"`{name}` is {mine.get(name, 'not there')} on rank {rank}",
                code="U0123",
                cause=f"on rank 0 it is {expected.get(name, 'not there')}",
                hint="make model, optimizer and example alike on every rank; the example is the global batch",
            )


def fingerprint(tensor: torch.Tensor, *, sampled: bool = True) -> int:
    """64 bits of a hash over the bytes of a tensor, or if `sampled` over some of them where there are more than :data:`SAMPLED_BYTES`."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if sampled and flat.numel() > SAMPLED_BYTES:
        block = SAMPLED_BYTES // _BLOCKS
        starts = [number * (flat.numel() - block) // (_BLOCKS - 1) for number in range(_BLOCKS)]
        flat = torch.cat([flat[start : start + block] for start in starts])
    digest = hashlib.blake2b(flat.cpu().numpy().data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def require(ranks: Ranks, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raises on every rank, and names the input and the ranks, if a tensor is not the same on all; collective.

    Args:
        ranks: the ranks.
        names: what the tensors are, the same on every rank.
        tensors: this rank's.
    """
    if ranks.count == 1:
        return
    mine = torch.tensor([fingerprint(tensor) for tensor in tensors])
    try:
        found = torch.stack(ranks.gathered(mine))
    except RuntimeError as error:
        raise ranks.blamed("the comparison of the ranks' batches failed", None, str(error)) from None
    unlike = (found != found[0]).any(0).nonzero().flatten().tolist()
    if unlike:
        others = (found[:, unlike[0]] != found[0, unlike[0]]).nonzero().flatten().tolist()
        raise _disagreement([names[int(position)] for position in unlike], others)


def warn_of_the_same(ranks: Ranks, tensors: Sequence[torch.Tensor]) -> None:
    """Warns if ranks that are to give parts of a batch all give the same; collective."""
    if ranks.count == 1 or not tensors:
        return
    found = torch.stack(ranks.gathered(torch.tensor([fingerprint(tensor) for tensor in tensors])))
    if bool((found == found[0]).all()):
        message = (
            'every rank gives the same tensors as its part of the batch, which then has each sample several times; `batch="global"` is '
            "for ranks that are all given the global batch"
        )
        warn_user(message, RuntimeWarning)


def _disagreement(names: list[str], others: list[int]) -> StepError:
    where = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
    more = f" (and {len(names) - 1} more: {', '.join(names[1:4])})" if len(names) > 1 else ""
    if names[0].startswith("generators."):
        return StepError(
            f"the generator `{names[0].removeprefix('generators.')}` is in another state on {where} than on rank 0",
            code="U0123",
            cause="every rank draws all random numbers of the step, which are those of one device only if all ranks draw the same",
            hint="seed it alike on every rank, and draw the same numbers from it between steps",
        )
    if names[0].startswith(_GENERATOR):
        kind = names[0].removeprefix(_GENERATOR)
        of = "" if kind == "cpu" else f" of {kind}"
        return StepError(
            f"PyTorch's random number generator{of} is in another state on {where} than on rank 0",
            code="U0123",
            cause="every rank draws all random numbers of the step, which are those of one device only if all ranks draw the same",
            hint="draw the same numbers on every rank between steps, or draw yours from a `torch.Generator` of your own",
        )
    return StepError(
        f"`{names[0]}` on {where} is not that of rank 0{more}",
        code="U0123",
        cause="every rank is called with the global batch and takes its shard of it; batches that differ would be mixed",
        hint="draw batches with the same seed and the same sampler on every rank, or have rank 0 broadcast them; where each rank is to "
        'give its own part, with a `DistributedSampler`, say `batch="local"`',
    )
