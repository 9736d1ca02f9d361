"""Settings in a TOML file are those that `parallelize` has, and what is given in Python goes before them."""

from __future__ import annotations

import pytest
import steps
import torch

import unisono


def parallel(config, **settings):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    training = steps.squares(model, optimizer)
    return unisono.parallelize(
        training.step, model=model, optimizer=optimizer, example=training.batches[0], config=config, **settings
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "machine.toml").write_text(steps.EAGER_TO_CUT)
    return tmp_path


def written(folder, text):
    file = folder / "unisono.toml"
    file.write_text(text)
    return file


def test_settings_are_read_from_a_file(folder):
    config = """
        on_change = "refuse"
        seed = 7
        match_eager = true
        cluster = "machine.toml"
        memory_limit = "1 GiB"
        [mesh]
        alone = 1
        [pins]
        "batch.*" = { alone = "replicate" }
        [forbid]
        alone = ["all_to_all"]
        "*" = "permute"
    """
    step = parallel(written(folder, config))
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))
    assert step.plan.mesh == {"alone": 1}
    assert step.plan.settings["forbid"] == {"alone": ["all_to_all"], "*": ["permute"]}
    with pytest.raises(unisono.errors.StepError, match=r"of shape \[3, 4\]"):
        step(torch.ones(3, 4))


def test_what_is_given_in_python_goes_before_the_file(folder):
    file = written(folder, 'cluster = "machine.toml"\non_change = "refuse"\nmesh = { a = 1 }')
    step = parallel(file, mesh={"b": 1})
    assert step.plan.mesh == {"b": 1}
    with pytest.raises(unisono.errors.StepError, match=r"of shape \[3, 4\]"):
        step(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("seed = 1\n\n[mehs]\na = 1", "U0012", ["no setting `mehs`", "unisono.toml:3", "did you mean `mesh`?"]),
        ("x = 1", "U0012", ["no setting `x`", "settings are mesh, micro_batches, recompute"]),
        ('seed = "7"', "U0012", ["`seed` is '7'", "unisono.toml:1", "a whole number"]),
        ("seed = true", "U0012", ["`seed` is True", "a whole number"]),
        ("mesh = 4", "U0012", ["`mesh` is 4", "a table of axes"]),
        ("keep_grads = 1", "U0012", ["`keep_grads` is 1", "true or false"]),
        ('on_change = "ignore"', "U0012", ["`on_change` is 'ignore'"]),
        ("forbid = 4", "U0012", ["`forbid` is 4", "kinds of collectives"]),
        ('cluster = "machine.toml"\nforbid = ["all_to_al"]', "U0202", ["`all_to_al`", "did you mean `all_to_all`?"]),
        (
            "cluster = 'machine.toml'\n[forbid]\nb = ['permute']",
            "U0202",
            ["names an axis `b` that no mesh of 1 ranks has"],
        ),
        ("[forbid]\na = [4]", "U0202", ["forbidden along `a` is [4]", "all_gather"]),
        ('memory_limit = "much"', "U0012", ["much"]),
        ("[mesh]\na = 2", "U0205", ["`a` of 2", "1 process runs"]),
        ("seed = \n", "U0011", ["is not TOML", "line 1"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(folder, text, code, said):
    with pytest.raises(unisono.errors.ConfigurationError) as caught:
        parallel(written(folder, text))
    assert caught.value.code == code
    assert all(one in str(caught.value) for one in said), str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(unisono.errors.ConfigurationError, match="cannot read"):
        parallel(tmp_path / "none.toml")
