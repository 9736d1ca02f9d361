"""Each example prints by Unisono what it prints by PyTorch alone, on one rank, on two and on four."""

from __future__ import annotations

from pathlib import Path

import launch
import pytest
from steps import EAGER_TO_CUT

from unisono import _native, _profile

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["finetune", "accelerated", "diffusion", "classify", "lora"]


def printed(name: str, ranks: int, folder: Path, *arguments: str) -> list[str]:
    """The lines that an example prints, planned for a machine that stands where a measured one would be kept."""
    _native.keep_machine(folder / ".cache" / "unisono", (ranks, 1, _profile.identity()), EAGER_TO_CUT)
    ended = launch.run_script(EXAMPLES / f"{name}.py", ranks, folder, 200, *arguments)
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}: {one.err[-3000:]}"
        assert rank == 0 or not one.out, f"rank {rank} prints: {one.out}"
    return ended[0].out.splitlines()


def assert_same(found: list[str], expected: list[str]) -> None:
    """Lines have the same words, and numbers that differ by rounding alone."""
    assert len(found) == len(expected), "\n".join(found)
    for line, wanted in zip(found, expected, strict=True):
        for word, other in zip(line.split(), wanted.split(), strict=True):
            if "." in other:
                last_digit = 10.0 ** -len(other.partition(".")[2])
                assert float(word) == pytest.approx(float(other), rel=1e-4, abs=2 * last_digit), f"{line}\n{wanted}"
            else:
                assert word == other, f"{line}\n{wanted}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What an example prints by PyTorch alone."""
    found: dict[str, list[str]] = {}

    def lines(name: str) -> list[str]:
        if name not in found:
            found[name] = printed(name, 1, tmp_path_factory.mktemp(name), "--plain")
        return found[name]

    return lines


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_on_one_rank_on_two_and_on_four(plain, name, ranks, tmp_path):
    assert_same(printed(name, ranks, tmp_path), plain(name))


def test_a_checkpoint_of_two_ranks_goes_on_by_itself_and_on_two(plain, tmp_path):
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    first = printed("finetune", 2, tmp_path / "first", "--epochs", "1", *checkpoint)
    rest = printed("finetune", 1, tmp_path / "rest", "--plain", *checkpoint)
    assert_same([*first[:-1], *rest], plain("finetune"))
