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


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.t.default, ()),
        (aten.view.default, ([3, 4],)),
        (aten.slice.Tensor, (0, 1, 3)),
        (aten.split.Tensor, (2, 1)),
        (aten.unsafe_split.Tensor, (3, 1)),
        (aten.detach.default, ()),
    ],
)
def test_views_are_of_the_operand_that_is_given(mode, func, args):
    for offset in (0, 2, 2):
        matrix = torch.empty(16)[offset : offset + 12].view(4, 3)
        found = results.result(mode, func, (matrix, *args), {})
        wanted = func(torch.empty(16, device="meta")[offset : offset + 12].view(4, 3), *args)
        pairs = zip(*([one] if isinstance(one, torch.Tensor) else one for one in (found, wanted)), strict=True)
        for one, other in pairs:
            assert type(one) is FakeTensor and one is not matrix
            assert one.untyped_storage()._cdata == matrix.untyped_storage()._cdata
            assert (one.shape, one.stride(), one.storage_offset()) == (
                other.shape,
                other.stride(),
                other.storage_offset(),
            )


def test_what_changes_its_first_operand_gives_that_operand_each_time(mode):
    for _ in range(2):
        matrix, other = torch.empty(4, 6), torch.empty(6)
        assert results.result(mode, aten.add_.Tensor, (matrix, other), {}) is matrix
    with pytest.raises(RuntimeError):
        results.result(mode, aten.add_.Tensor, (torch.empty(6), torch.empty(4, 6)), {})


def test_lists_of_tensors_decide_as_tensors_do(mode):
    for rows in (2, 3, 2):
        joined = results.result(mode, aten.cat.default, ([torch.empty(rows, 2), torch.empty(1, 2)],), {})
        assert joined.shape == (rows + 1, 2)


def test_what_is_asked_under_another_name_is_asked_for_again(mode):
    vector = torch.empty(3)
    for under, dtype in (("one", torch.float32), ("other", torch.float64), ("one", torch.float32)):
        found = results.result(mode, aten.neg.default, (vector,), {}, lambda d=dtype: torch.empty(3, dtype=d), under)
        assert found.dtype == dtype


def test_what_is_known_of_constants_is_left_to_pytorch(mode):
    known = torch.tensor(2.0)
    for _ in range(2):
        assert known.constant is not None
        assert results.result(mode, aten.neg.default, (known,), {}).constant is not None
