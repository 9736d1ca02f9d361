"""What a step saves under one plan it loads under another, bit for bit; what does not fit is refused."""

from __future__ import annotations

import contextlib
import json
import math

import launch
import pytest
import steps
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import unisono
from unisono._placements import pieces, to_local


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of the same step under every way to place it, each loaded under every other."""
    folder = tmp_path_factory.mktemp("saved")
    with contextlib.ExitStack() as stack:
        runs = [
            launch.Processes("checkpoint_ranks:save_and_load", ranks, folder / str(ranks), kept=str(folder))
            for ranks in range(1, 5)
        ]
        ended = [one for run in map(stack.enter_context, runs) for one in run.ended(seconds=400)]
    assert [one.status for one in ended] == [0] * 10, "\n".join(one.err[-2000:] for one in ended if one.status)
    return folder


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ({"a": 3}, {"a": "shard(0)"}),
        ({"a": 2}, {"a": "shard(1, 3)"}),
        ({"a": 2, "b": 3}, {"a": "shard(0, 2)", "b": "shard(1)"}),
        ({"a": 2, "b": 2}, {"a": "shard(0, 3)", "b": "shard(0)"}),
        ({"a": 3, "b": 2}, {"a": "shard(0)", "b": "shard(0, 2)"}),
        ({"a": 2, "b": 2}, {"b": "shard(1, 3)"}),
        ({"a": 5}, {"a": "shard(0)"}),
        ({"a": 8}, {"a": "shard(1, 3)"}),
        ({"a": 4}, {"a": "shard(1, 2, 3)"}),
        ({"a": 2, "b": 4}, {"a": "shard(0)", "b": "shard(0)"}),
        ({"a": 5, "b": 2}, {"a": "shard(1)", "b": "shard(0, 2, 4)"}),
    ],
)
def test_the_pieces_of_a_rank_are_its_shard(mesh, layout):
    whole = torch.arange(12 * 18).reshape(12, 18)
    for rank in range(math.prod(mesh.values())):
        local = to_local(whole, layout, mesh, rank)
        found = torch.full_like(local, -1)
        for piece in pieces(whole.shape, layout, mesh, rank):
            there = [slice(start, start + size) for start, size in zip(piece.offsets, piece.sizes, strict=True)]
            piece.of(found).copy_(whole[tuple(there)])
        assert torch.equal(found, local)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", range(1, 5))
def test_a_checkpoint_of_any_plan_is_loaded_under_any_other_bit_for_bit(saved, ranks):
    for rank in range(ranks):
        assert json.loads((saved / str(ranks) / f"wrong-{rank}.json").read_text()) == []


@pytest.mark.timeout(900)
def test_shards_are_dtensors_on_the_mesh_of_the_step(saved):
    def placements(placed, name):
        return torch.load(saved / f"{placed}.pt")["layouts"][name]

    assert placements("one rank", "tokens.weight") == ""
    assert placements("batch", "tokens.weight") == "(Replicate(),)"
    assert placements("state", "tokens.weight") == placements("state", "head.weight") == "(Shard(dim=0),)"
    assert placements("tensors", "blocks.0.qkv.weight") == "(Shard(dim=0),)"
    assert placements("2 x 2", "blocks.0.up.weight") == "(Shard(dim=0), Shard(dim=0))"
    assert placements("3 ranks", "tokens.weight") == placements("3 ranks", "positions.weight") == "(Shard(dim=0),)"


def made(step_of=steps.mlp):
    """A step on one rank, after one step."""
    training = step_of(count=2)
    step = steps.parallelize(training)
    step(*training.batches[0])
    return training, step


def test_names_are_those_of_pytorch():
    training, step = made()
    step.sync()
    found = step.state_dict()
    model, optimizer = get_state_dict(training.model, training.optimizer)
    assert list(found["model"]) == list(model)
    assert found["optimizer"]["state"].keys() == optimizer["state"].keys()
    assert {n: s.keys() for n, s in found["optimizer"]["state"].items()} == {
        n: s.keys() for n, s in optimizer["state"].items()
    }
    groups = [
        {key: value for key, value in group.items() if key in optimizer["param_groups"][0]}
        for group in found["optimizer"]["param_groups"]
    ]
    assert groups == optimizer["param_groups"]


def test_a_state_of_pytorch_alone_is_loaded():
    eager = steps.mlp(count=2)
    eager.step(*eager.batches[0])
    model, optimizer = get_state_dict(eager.model, eager.optimizer)
    training, step = made()
    step(*training.batches[1])
    step.load_state_dict({"model": model, "optimizer": optimizer})
    assert torch.allclose(step(*eager.batches[1])["loss"], eager.step(*eager.batches[1])["loss"], rtol=1e-6)


def test_settings_and_numbers_are_loaded():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.1)

    parallel = steps.parallelize(steps.squares(model, optimizer))
    parallel(torch.ones(2, 4))
    state = {
        "optimizer": parallel.state_dict()["optimizer"],
        "model": {n: v.clone() for n, v in model.state_dict().items()},
    }
    state["optimizer"]["state"] = {
        name: {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in of.items()}
        for name, of in state["optimizer"]["state"].items()
    }
    expected = parallel(torch.ones(2, 4))
    for _ in range(3):
        parallel(torch.ones(2, 4))
    optimizer.param_groups[0]["lr"] = 0.7
    parallel.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(parallel(torch.ones(2, 4)), expected)


def other_states(state):
    """What does not fit, and what is said of it."""
    model, optimizer = state["model"], state["optimizer"]
    without = {name: value for name, value in model.items() if name != "0.weight"}
    several = {name: value for name, value in model.items() if not name.startswith("1.")}
    return {
        "a name is missing": ({**state, "model": without}, "`model.0.weight` is missing"),
        "many names are missing": ({**state, "model": several}, "`model.1.running_mean` and 2 more are missing"),
        "a name is unknown": ({**state, "model": {**model, "x": torch.ones(1)}}, "`model.x` is unknown here"),
        "another shape": (
            {**state, "model": {**model, "0.weight": torch.ones(3, 3)}},
            r"`model.0.weight` in the state that is loaded is of shape \[3, 3\], here it is of shape \[64, 32\]",
        ),
        "no tensor": ({**state, "model": {**model, "0.weight": 3}}, "is no tensor"),
        "other groups": (
            {**state, "optimizer": {**optimizer, "param_groups": [{"params": ["0.weight"]}]}},
            "other groups of parameters",
        ),
    }


@pytest.mark.parametrize("case", other_states({"model": {}, "optimizer": {}}))
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(case):
    training, step = made()
    state = step.state_dict()
    other, message = other_states(state)[case]
    other["model"] = {
        name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else v for name, v in other["model"].items()
    }
    before = {name: value.clone() for name, value in state["model"].items()}
    with pytest.raises(unisono.errors.ConfigurationError, match=message) as caught:
        step.load_state_dict(other)
    assert caught.value.code == "U0206"
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict()["model"].items())
    assert training.model[0].weight.shape == (64, 32)


def test_what_is_in_both_is_loaded_if_names_may_differ():
    _, step = made()
    step.load_state_dict({"model": {"0.weight": torch.ones(64, 32), "x": torch.ones(1)}}, strict=False)
    assert step.state_dict()["model"]["0.weight"].eq(1).all()


def damages(folder):
    """What may happen to a checkpoint, and what is said of it."""
    data = next(iter(folder.glob("*.distcp")), folder)
    return {
        "cut off": (lambda: data.write_bytes(data.read_bytes()[:-100]), "too short"),
        "a file is gone": (data.unlink, "not there"),
        "unreadable": (lambda: (folder / ".metadata").write_bytes(b"x"), "cannot be read"),
        "never finished": ((folder / ".metadata").unlink, "no complete checkpoint"),
    }


@pytest.mark.parametrize("case", damages(launch.Path()))
def test_a_damaged_checkpoint_is_refused_and_nothing_is_changed(tmp_path, case):
    training, step = made()
    step.save(tmp_path / "saved")
    step(*training.batches[1])
    before = {name: value.clone() for name, value in step.state_dict()["model"].items()}
    damage, message = damages(tmp_path / "saved")[case]
    damage()
    with pytest.raises(unisono.errors.ConfigurationError) as caught:
        step.load(tmp_path / "saved")
    assert message in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict()["model"].items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    _, gpt = made(steps.gpt)
    gpt.save(tmp_path / "saved")
    _, mlp = made()
    with pytest.raises(unisono.errors.ConfigurationError, match="of another model") as caught:
        mlp.load(tmp_path / "saved")
    assert "`model.0.weight`" in str(caught.value)


def test_a_save_that_is_cut_off_leaves_the_checkpoint_before_it(tmp_path):
    training, step = made()
    step.save(tmp_path / "saved")
    before = {name: value.clone() for name, value in step.state_dict()["model"].items()}
    # as it is between the two renames, with a new one that is not complete
    (tmp_path / "saved").rename(tmp_path / ".saved.before")
    (tmp_path / ".saved.partial").mkdir()
    step(*training.batches[1])
    step.load(tmp_path / "saved")
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict()["model"].items())
    step.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    _, step = made()
    (tmp_path / "file").write_text("")
    with pytest.raises(unisono.errors.ConfigurationError, match="cannot be written"):
        step.save(tmp_path / "file" / "saved")


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    _, step = made()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(unisono.errors.ConfigurationError, match=r"has other files than a checkpoint's: `notes.txt`"):
        step.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_is_saved_beside_the_step_is_loaded_with_it(tmp_path):
    training, step = made()
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
    scheduler.step()
    step.save(tmp_path / "saved", scheduler=scheduler)
    rate = scheduler.get_last_lr()
    scheduler.step()
    step.load(tmp_path / "saved", scheduler=scheduler)
    assert scheduler.last_epoch == 1
    assert scheduler.get_last_lr() == [group["lr"] for group in training.optimizer.param_groups] == rate
    with pytest.raises(unisono.errors.ConfigurationError, match="has no `sampler`"):
        step.load(tmp_path / "saved", sampler=scheduler)
    with pytest.raises(unisono.errors.ConfigurationError, match="`epoch` is a int"):
        step.save(tmp_path / "saved", epoch=3)


def test_a_checkpoint_is_read_by_pytorch_alone(tmp_path):
    training, step = made()
    step.save(tmp_path / "saved")
    step.sync()
    eager = steps.mlp(count=2)
    model, optimizer = get_state_dict(eager.model, eager.optimizer)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    set_state_dict(eager.model, eager.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert all(
        torch.equal(value, eager.model.state_dict()[name]) for name, value in training.model.state_dict().items()
    )
    batch = training.batches[1]
    assert torch.allclose(step(*batch)["loss"], eager.step(*batch)["loss"], rtol=1e-6)


class Counting(torch.nn.Linear):
    """A layer with extra state."""

    count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def with_gradients():
    """A step that sets gradients to zero in place, called with two shapes, so that it is captured again with gradients as state."""
    torch.manual_seed(0)
    model = Counting(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    return model, steps.parallelize(steps.squares(model, optimizer, set_to_none=False))


def test_gradients_are_in_no_checkpoint_and_extra_state_is(tmp_path):
    model, step = with_gradients()
    step(torch.ones(2, 4))
    with pytest.warns(unisono.errors.CaptureNotice):
        step(torch.ones(3, 4))
    model.count = 7
    assert step.state_dict().keys() == {"model", "optimizer"}
    step.save(tmp_path / "saved")
    expected = step(torch.ones(2, 4))
    other, again = with_gradients()
    again.load(tmp_path / "saved")
    assert other.count == 7
    assert torch.equal(again(torch.ones(2, 4)), expected)
