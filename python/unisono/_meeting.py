"""Points that all ranks must come to together: ``sync``, captures, and a captured step that another one has run before.

A rank that does not come is named, with where it is instead.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from unisono.errors import ResourceError, StepError

#: After so long, the ranks that have not come are asked where they are.
_PATIENCE = 2.0
_POLL, _PAUSE = 0.05, 0.002
#: So long the rank that may have the store stays at its end for others to read from it.
_FAREWELL = 5.0
_WATCH = 0.5


class Meeting:
    """This process among those that meet.

    Attributes:
        done: how many steps, of all functions, this rank has done.
        inside: the number of the step that it is in, the first being 0, or ``None`` between steps.
    """

    def __init__(self) -> None:
        """Joins the store of the process group, and answers from then on where this rank is."""
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore("unisono", store)  # pyright: ignore[reportPrivateImportUsage]
        self._rank, self._count, self._number = dist.get_rank(), dist.get_world_size(), 0
        self.inside: int | None = None
        self.done = 0
        self._past = 0
        self._stop = threading.Event()
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        atexit.register(self._end, thread)

    def come(self, what: str, why: str, lost: Callable[[], list[int]]) -> None:
        """Waits for all ranks to come to the same point.

        Args:
            what: what this rank is about to do, such as ``"call `sync`"``.
            why: more of it, for messages.
            lost: gives the ranks whose processes are gone.
        """
        self._number += 1
        others = [rank for rank in range(self._count) if rank != self._rank]
        keys = [self._key("at", rank) for rank in others]
        self._store.set(self._key("at", self._rank), f"{what}\n{why}")
        start = time.monotonic()
        while not self._are_there(keys):
            if time.monotonic() - start > _PATIENCE:
                self._ask(what, why, [r for r in others if not self._store.check([self._key("at", r)])], lost)
        for rank, said in zip(others, self._store.multi_get(keys), strict=True):
            their, _, reason = said.decode().partition("\n")
            if their != what:
                raise _apart(self._rank, what, why, f"rank {rank} is to {their}{reason and f' ({reason})'}")
        self._past = self._number
        self._store.set(self._key("past", self._rank), "1")
        for kind in ("at", "past"):  # whoever is here has read of the meeting before
            self._store.delete_key(f"{kind}/{self._number - 1}/{self._rank}")

    def _are_there(self, keys: list[str], seconds: float = _POLL) -> bool:
        """Whether all others have come, for whom it waits. By asking: a store that waits in vain complains of it to the user."""
        end = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        return True

    def _ask(self, what: str, why: str, missing: list[int], lost: Callable[[], list[int]]) -> None:
        self._store.set(self._key("asked", 0), "1")
        for rank in missing:
            number = (
                self._store.get(self._key("where", rank)) if self._store.check([self._key("where", rank)]) else b"0"
            )
            if int(number) > self.done:  # a rank that is in an earlier step comes later
                raise _apart(self._rank, what, why, f"rank {rank} is in step {number.decode()}")
            if rank in lost():
                raise ResourceError(
                    f"rank {rank} is gone, while rank {self._rank} is to {what}",
                    code="U0320",
                    cause="its process has ended",
                    hint=f"{what} on every rank, not on one alone",
                )

    def _key(self, kind: str, rank: int) -> str:
        return f"{kind}/{self._number}/{rank}"

    def _answer(self) -> None:
        """Says that this rank is in a step, when it is asked and has been there for a while."""
        before: Any = None
        with contextlib.suppress(Exception):  # the store has ended
            while not self._stop.wait(_WATCH):
                now, number = self.inside, self._number + 1
                if now is not None and now == before and self._store.check([f"asked/{number}/0"]):
                    self._store.set(f"where/{number}/{self._rank}", str(now + 1))
                before = now

    def _end(self, thread: threading.Thread) -> None:
        self._stop.set()
        thread.join(2 * _WATCH)
        if self._rank == 0 and self._past == self._number > 0:
            self._wait_until_all_are_past()

    def _wait_until_all_are_past(self) -> None:
        """Waits until no rank reads of the last meeting any more: without ``torchrun``, the store ends with this process."""
        keys = [self._key("past", rank) for rank in range(self._count)]
        with contextlib.suppress(Exception):  # the store has ended
            self._are_there(keys, _FAREWELL)


def _apart(rank: int, what: str, why: str, elsewhere: str) -> StepError:
    return StepError(
        f"rank {rank} is to {what}{why and f' ({why})'}, while {elsewhere}",
        code="U0123",
        cause="all ranks must do the same steps, and the same between them",
        hint=f"{what} on every rank, outside of conditions such as `if rank == 0:`",
    )


_meetings: dict[int, Meeting] = {}


def meeting() -> Meeting:
    """The meeting of the process group that there is."""
    store = dist.distributed_c10d._get_default_store()
    if id(store) not in _meetings:
        _meetings[id(store)] = Meeting()
    return _meetings[id(store)]
