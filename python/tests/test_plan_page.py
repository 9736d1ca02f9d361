"""Pages of plans: what they say, and what was measured beside what was predicted."""

from __future__ import annotations

import launch
import pytest
import torch
from test_config import parallel

import unisono
from unisono.plans import Plan


def capture():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x_BF):
        optimizer.zero_grad()
        loss = model(x_BF).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.empty(512, 1024, device="meta")
    return unisono.capture(step, model=model, optimizer=optimizer, example=(batch,), device="cuda")


def test_the_page_of_a_plan_says_what_its_figures_say(tmp_path):
    plan = capture().plan("h100:2x8", mesh={"data": 2, "tensor": 8})
    plan.report(tmp_path / "plan.html")
    page, figures = (tmp_path / "plan.html").read_text(encoding="utf-8"), plan.figures()
    assert figures["memory_limit"] == 80_000_000_000
    said = [
        figures["label"],
        figures["limited_by"],
        figures["device"],
        "data = 2 \u00d7 tensor = 8",
        "limit of 74.5 GiB",
    ]
    said += [one["names"] for one in figures["state"]]
    said += [one["module"] for one in figures["modules"]]
    said += [f"{one['kind']} of {one['of']}" for one in figures["collectives"]]
    said += [one["label"] for one in figures["runners_up"]]
    assert [text for text in said if text not in page] == []
    assert "predicted</h3>" in page and "measured</h3>" not in page
    assert "http" not in page and "src=" not in page


def test_a_plan_that_was_read_has_no_page(tmp_path):
    plan = capture().plan("h100:2")
    with pytest.raises(ValueError, match="has no page"):
        Plan(plan.text).report(tmp_path / "plan.html")


def test_a_step_on_one_rank_has_a_page(tmp_path):
    step = parallel(None)
    step.report(tmp_path / "predicted.html")
    assert "one rank" in (tmp_path / "predicted.html").read_text(encoding="utf-8")
    step.report(tmp_path / "measured.html", torch.ones(2, 4))
    page = (tmp_path / "measured.html").read_text(encoding="utf-8")
    assert "Measured on rank 0, the program took" in page
    assert page.index("predicted</h3>") < page.index("measured</h3>") < page.index("memory, predicted</h3>")


def test_measured_collectives_stand_under_predicted_ones(tmp_path):
    for rank, one in enumerate(launch.run("page_ranks:report", 2, tmp_path, 100)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
    page = (tmp_path / "plan0.html").read_text(encoding="utf-8")
    _, predicted, measured = page.split("collectives on ranks</span>")
    assert predicted.count('class="collective"') > 0 < measured.count('class="collective"')
    assert not (tmp_path / "plan1.html").exists(), "rank 0 alone writes"
