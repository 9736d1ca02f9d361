"""Scripts whose steps read values back: to return, print and log them."""

from __future__ import annotations

import contextlib
import io
import logging

import torch.nn.functional as F
from script_parts import Net, adam, ended, pair
from torch import nn
from user_scripts import Eager, ranks, script

logger = logging.getLogger("a training")


@script
def numbers_are_returned(parallelize):
    model = Net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right = (out.argmax(1) == y.argmax(1)).sum()
        return {
            "loss": loss.item(),
            "float": float(loss),
            "mean": loss.item() * len(x) / 2 - 1,
            "right": right.item(),
            "share": int(right) / len(x) * 100.0,
            "rounded": round(norm.item(), 2),
            "list": out[0].detach().tolist(),
            "text": f"loss {loss.item():.2f} of {loss:.1f}",
            "tensor": loss.detach(),
            "kind": isinstance(0.5, float) and float("1") == 1.0 and int(2.5) == 2,
        }

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [step(*batch) for _ in range(3)]
    return ended(step, found, model, optimizer)


@script
def losses_are_printed_and_logged(parallelize):
    model = Net()
    optimizer = adam(model)
    out = io.StringIO()
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print("loss", round(loss.item(), 2), loss.detach().shape)
        print(f"{loss:.1f}", {"loss": [round(loss.item(), 1)]}, sep="|", end=";\n", flush=True)
        logger.info("loss %.2f", loss.item())
        logger.debug(f"not shown {loss.item()}")
        return loss.detach()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    with contextlib.redirect_stdout(out):
        losses = [step(*batch) for _ in range(3)]
    logger.removeHandler(handler)
    # Other ranks than the first print nothing.
    shown = (out.getvalue(), logged.getvalue())
    return losses, shown if ranks()[0] == 0 else shown == ("", "") or isinstance(step, Eager)


class Meter:
    """The mean of what it is given."""

    def __init__(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0

    def update(self, value, n):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


@script
def numbers_are_kept_in_python(parallelize):
    model, meter, losses, outputs, seen = Net(), Meter(), [], [], {"steps": 0}
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        outputs.append({"out": out.detach(), "loss": loss.detach()})
        seen["steps"] += 1
        seen["last"] = {"step": seen["steps"], "loss": loss.item()}
        meter.update(loss.item(), len(x))
        losses.append(round(loss.item(), 3))
        if loss > 1e6:
            seen["steps"] = 0
        return loss.detach(), meter.avg

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [(*step(*batch), dict(vars(meter)), [*losses], seen["steps"], dict(seen["last"])) for _ in range(3)]
    meter.__init__()
    found += [(*step(*batch), dict(vars(meter)), [*losses], seen["steps"], dict(seen["last"])) for _ in range(2)]
    return ended(step, (found, outputs), model, optimizer)
