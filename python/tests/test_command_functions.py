"""What `FILE.py:FUNCTION` of the commands on a training step names, where that makes no step."""

from __future__ import annotations

import re

import pytest

from unisono import _commands, _devices

GOOD = """
def make():
    return {"train_step": lambda x: (x * 2).tanh() + x, "example": (torch.ones(64, 64),)}
"""
FAILING = {
    "absent": ("import torch", "`wrong.py` has no function `make`", None),
    "no function": ("make = 3", "`wrong.py` has no function `make`", None),
    "with arguments": ("def make(size, *more, depth=3): ...", "`wrong.py:make` takes arguments: size", 1),
    "of a library": ("from operator import add as make", "`wrong.py:make` takes arguments: a, b", None),
    "in C": ("make = int.from_bytes", "takes arguments|fails: TypeError", None),
    "raising": ("def make():\n    x = 1\n    raise KeyError(x)", "`wrong.py:make` fails: KeyError: 1", 3),
    "not importable": (
        "import torch\nimport nothing_of_this_name",
        "importing `wrong.py` fails: ModuleNotFoundError",
        2,
    ),
    "no Python": ("def make():\n    return (1", "importing `wrong.py` fails: SyntaxError", 2),
    "ending": ("import sys\nsys.exit(4)", "importing `wrong.py` ends Python with status 4", 2),
    "a list": ("def make():\n    return [1]", "`wrong.py:make` returns a list", None),
}


@pytest.mark.parametrize("command", [_commands.kernels, _commands.capture], ids=["kernels", "capture"])
@pytest.mark.parametrize("name", FAILING)
def test_what_makes_no_step_is_told_with_its_line(name, command, tmp_path, monkeypatch, capsys):
    text, message, line = FAILING[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(text)
    assert command(["wrong.py:make"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    assert re.match(rf"error\[U0120\]: .*({message})", said.err), said.err
    assert "hint: " in said.err
    assert line is None or f"wrong.py:{line}\n" in said.err, said.err


def test_kernels_of_a_function_are_printed_in_both_roundings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text("import torch\n" + GOOD)
    found = {}
    for flags in ([], ["--match-eager"]):
        assert _commands.kernels(["good.py:make", *flags]) == 0
        found[len(flags)] = capsys.readouterr().out
    assert "%3 = tanh %2" in found[0] and "aten::tanh" not in found[0].partition("as they are")[2]
    assert "1 of aten::tanh: other bits than PyTorch's in f32" in found[1]


def test_products_that_are_computed_in_f32_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("(x * 2).tanh() + x", "x @ x + 1").replace("(64, 64)", "(64, 64, dtype=torch.bfloat16)")
    (tmp_path / "good.py").write_text("import torch\n" + text)
    found = []
    for narrow in ((), ("bf16",)):
        monkeypatch.setattr(_devices, "narrow_types", lambda narrow=narrow: narrow)
        assert _commands.kernels(["good.py:make"]) == 0
        found.append(capsys.readouterr().out)
    assert "wide_products" not in found[0]
    assert found[1].startswith("1 products of 16 bits are computed in f32")
