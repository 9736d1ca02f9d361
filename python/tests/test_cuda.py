"""Kernels of CUDA without a device: their text, what NVRTC makes of it, and where they are not there."""

from __future__ import annotations

import pytest
import steps
import torch

import unisono
from unisono import _cuda, _executor, _native
from unisono.__main__ import main
from unisono.errors import HardwareError


@pytest.fixture(scope="module")
def libraries():
    """NVRTC as PyTorch's CUDA wheels bring it."""
    found = _cuda.libraries_of_cuda()
    if not found.compiler.exists():
        pytest.skip("there is no NVRTC here: kernels are not compiled for CUDA")
    return found


@pytest.fixture(scope="module")
def kernels():
    """Those of a step of a LLaMA."""
    training = steps.llama(count=1)
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    return graph.native.run_passes()[0].kernel_texts(cuda=True)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_of_a_step_are_one_program_that_nvrtc_compiles_without_spilling(libraries, kernels, architecture):
    text, reasons = _native.cuda_source(kernels)
    assert len(kernels) > 5
    assert reasons == [None] * len(kernels)
    made = _native.compile_cuda(text, architecture, libraries.compiler, libraries.before)
    assert {name.partition("_")[0] for name, *_ in made} == {f"k{number}" for number in range(len(kernels))}
    assert all(0 < registers <= 128 and spilled == 0 for _, registers, spilled, _ in made)


def test_what_nvrtc_refuses_is_an_error_with_its_words(libraries):
    with pytest.raises(HardwareError, match="U0331") as error:
        _native.compile_cuda("no program", "sm_90", libraries.compiler, libraries.before)
    assert "kernels.cu(1): error" in str(error.value)


def test_a_compiler_that_is_not_there_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(HardwareError, match="U0330") as error:
        _native.compile_cuda("", "sm_90", tmp_path / "libnvrtc.so", [])
    assert "nvidia-cuda-nvrtc" in (error.value.hint or "")


def test_where_cuda_s_libraries_are_not_there_the_reason_is_known(tmp_path, monkeypatch):
    absent = _cuda.Libraries(tmp_path / "libnvrtc.so", (), tmp_path / "libcuda.so")
    monkeypatch.setitem(_cuda.STAND_INS, "meta", absent)
    _executor.load()
    reason = _cuda.device_of(torch.device("meta", 0))
    assert isinstance(reason, str)
    assert "libnvrtc.so" in reason


def test_a_device_that_is_not_cuda_has_no_kernels():
    assert _cuda.device_of(torch.device("xpu", 0)) == "there are no kernels for xpu here"


SCRIPT = """
import torch

def make_step():
    weight = torch.nn.Parameter(torch.ones(8, 64))
    def step(x):
        loss = torch.nn.functional.gelu(x * weight).sum()
        return loss.detach()
    return {"train_step": step, "model": torch.nn.ParameterList([weight]), "example": (torch.ones(8, 64),)}
"""


def test_the_command_prints_kernels_as_loops_and_as_cuda(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)

    def printed(*options: str) -> str:
        assert main(["kernels", f"{tmp_path / 'train.py'}:make_step", *options]) == 0
        return capsys.readouterr().out

    loops, cuda = printed(), printed("--cuda")
    assert "kernel [" in loops
    assert "as they are" in loops
    assert 'extern "C" __global__' in cuda
    assert "f_erf(" in cuda
    assert printed("--cuda", "--device", "cuda") == cuda
