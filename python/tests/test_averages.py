"""A step that counts with an average of the model is refused by its line; what the average takes is given back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unisono
from unisono.errors import StepError


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda average, model: average.step(model.parameters()), "two steps"),
        (lambda average, model: average.optimization_step % 2, "how many steps"),
        (lambda average, model: f"step {average.optimization_step}", "how many steps"),
    ],
)
def test_what_an_average_can_do_only_outside_of_the_step_is_refused_by_its_line(use, says):
    from diffusers.training_utils import EMAModel

    model = nn.Linear(2, 2)
    average = EMAModel(model.parameters())

    def step(x):
        average.step(model.parameters())
        use(average, model)
        return model(x)

    with pytest.raises(StepError, match=says) as caught:
        unisono.capture(step, model=model, example=(torch.ones(1, 2),))
    assert (caught.value.code, caught.value.place) == ("U0103", f"{__file__}:{use.__code__.co_firstlineno}")
    assert (average.optimization_step, average.cur_decay_value) == (0, None)
    assert average.get_decay(3) == 3 / 12
