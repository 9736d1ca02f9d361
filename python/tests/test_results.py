"""What operations give on tensors without data is asked of PyTorch once, and is what PyTorch says each time."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from unisono._capture import results
from unisono._capture.types import TensorType

aten = torch.ops.aten


@pytest.fixture
def mode():
    with FakeTensorMode() as entered:
        yield entered


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.mul.Tensor, lambda: (torch.empty(4, 6).t(), torch.empty(6, 1, dtype=torch.float64))),
        (aten.add.Scalar, lambda: (torch.empty(3, dtype=torch.long), 0.5)),
        (aten.native_layer_norm.default, lambda: (torch.empty(2, 5), [5], torch.empty(5), None, 1e-5)),
        (aten.empty_like.default, lambda: (torch.empty(8, 6)[::2],)),
        (aten.full.default, lambda: ([2, 3], 1.5)),
    ],
)
def test_the_second_result_is_like_the_first_and_a_tensor_of_its_own(mode, func, args):
    first, second = (results.result(mode, func, args(), {}) for _ in range(2))
    pairs = zip(*([one] if isinstance(one, torch.Tensor) else one for one in (first, second)), strict=True)
    for one, other in pairs:
        assert type(other) is FakeTensor and other.fake_mode is mode
        assert TensorType(one) == TensorType(other) and one is not other
        assert one.untyped_storage()._cdata != other.untyped_storage()._cdata


def test_a_number_of_another_type_and_another_type_of_numbers_by_default_are_asked_for_again(mode):
    whole = torch.empty(3, dtype=torch.long)
    types = [results.result(mode, aten.mul.Scalar, (whole, number), {}).dtype for number in (1, 1.0, True)]
    assert types == [torch.long, torch.float32, torch.long]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert results.result(mode, aten.mul.Scalar, (whole, 1.0), {}).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_views_constants_and_parts_of_one_memory_are_left_to_pytorch(mode):
    matrix = torch.empty(4, 6)
    for _ in range(2):
        assert results.result(mode, aten.t.default, (matrix,), {})._is_view()
        parts = results.result(mode, aten.unsafe_split.Tensor, (matrix, 3, 1), {})
        assert parts[0].untyped_storage()._cdata == parts[1].untyped_storage()._cdata
    known = torch.tensor(2.0)
    assert known.constant is not None and results.key_of(aten.neg.default, (known,), {}) is None
