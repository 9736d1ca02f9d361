"""The watch over running steps: a rank that stands still beyond the time-out ends the run, with one message of who is where.

The executor notes the instruction that it runs; a thread of each rank looks at that now and then, and says in the store of the process
group where its rank is when it is asked. Nobody asks before a rank has waited for others as long as the time-out. Then all are asked, one
rank makes the verdict from the answers, and all end with that.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from unisono import _flight_recorder
from unisono._capture.places import user_place
from unisono._message import pack, unpack
from unisono.errors import ResourceError

if TYPE_CHECKING:
    from unisono._captured_step import CapturedStep
    from unisono._ranks import ProcessState, Ranks

#: The longest and the shortest time between two looks, and how many there are in a time-out, in seconds.
_MOST, _LEAST, _LOOKS = 2.0, 0.05, 20
#: So many looks and seconds longer than the time-out a collective waits, so that there is a verdict when it fails.
_LONGER_LOOKS, _LONGER = 5, 2.0
#: After a verdict, so many looks and seconds it may take until that has been raised where the step was called.
_GRACE_LOOKS, _GRACE = 5, 4.0
_CODE = "U0325"
#: Numbers the watches of a process: every rank makes them in the same order.
_numbers = itertools.count()


@dataclass(frozen=True)
class Stand:
    """Where a rank stands.

    Attributes:
        step: the number of the step that it is in, or has done last, the first being 1.
        inside: whether it is in that step.
        at: the position of its instruction, ``None`` where it is beside the operations of the step.
        operation: the operation of that.
        place: the line of the user's code that it comes from.
        part: the part of the program.
        waits_for: the collective that it waits for, or ``None``.
        python: the line of the user's code that the main thread runs, or the last that called something else.
        seconds: for how long it has stood there.
        records: what begins the paths of dumps of flight recorders, where this rank has one and writes it.
    """

    step: int
    inside: bool
    at: int | None
    operation: str | None
    place: str | None
    part: str | None
    waits_for: str | None
    python: str | None
    seconds: float
    records: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.inside and (self.at is None or self.waits_for is not None)

    def __str__(self) -> str:
        """In words."""
        running = f"; its Python is at {self.python}" if self.python else ""
        if not self.inside:
            before = f"between steps, behind step {self.step}" if self.step else "before the first step"
            return f"{before}, for {self.seconds:.1f} s{running}"
        where = f"in step {self.step}" + (f", {self.part}" if self.part else "")
        if self.waits_for is not None:
            what, running = f"waiting for {self.waits_for.partition(' (')[0]}", ""
        elif self.operation is not None:
            what = f"in `{self.operation}`"
        else:
            what = "comparing what ranks are given, or making its arguments"
        return f"{where}, {what}{f' of {self.place}' if self.place else ''}, for {self.seconds:.1f} s{running}"


class Watch:
    """The watch of one rank over the steps of a session."""

    def __init__(self, ranks: Ranks, seconds: float) -> None:
        """Begins to look, unless there are no other ranks or ``seconds`` is 0."""
        self.seconds, self._ranks = seconds, ranks
        self._step: CapturedStep | None = None
        self._number = 0
        self._raised, self._stop = False, threading.Event()
        self._asked, self._found = threading.Event(), threading.Event()
        self._verdict: dict[str, Any] | None = None
        self._pause = min(max(seconds / _LOOKS, _LEAST), _MOST)
        self._since, self._before = time.monotonic(), (0, True, None)
        self._backends: weakref.WeakKeyDictionary[CapturedStep, list[Any]] = weakref.WeakKeyDictionary()
        self.on = ranks.count > 1 and seconds > 0
        if self.on:
            store = dist.distributed_c10d._get_default_store()
            # Of a clone, no answer of the store can keep the main thread's own requests waiting.
            own = getattr(store, "clone", lambda: store)()
            name = f"unisono_watch/{next(_numbers)}"
            self._store: Any = dist.PrefixStore(name, own)  # pyright: ignore[reportPrivateImportUsage]
            arguments = weakref.ref(self), self._stop, self._pause
            thread = threading.Thread(target=_look_on, args=arguments, name="unisono-watch", daemon=True)
            thread.start()
            atexit.register(_end, self._stop, thread)

    @contextlib.contextmanager
    def over(self, step: CapturedStep) -> Any:
        """Watches one step."""
        if not self.on:
            yield
            return
        self._number += 1
        self._step = step
        usual = self._shortened(step)
        try:
            yield
        finally:
            self._step = None
            for backend, timeout in usual:
                backend.set_timeout(timeout)

    def _shortened(self, step: CapturedStep) -> list[tuple[Any, datetime.timedelta]]:
        """Has collectives of gloo fail soon after the time-out, and gives what they waited before."""
        shorter = datetime.timedelta(seconds=self.seconds + _LONGER_LOOKS * self._pause + _LONGER)
        usual = []
        for backend in self._gloo_of(step):
            timeout = backend.options._timeout
            if timeout > shorter:
                usual.append((backend, timeout))
                backend.set_timeout(shorter)
        return usual

    def _gloo_of(self, step: CapturedStep) -> list[Any]:
        """The groups of gloo that a step's collectives go through, and those of what ranks compare before it."""
        if step not in self._backends:
            self._backends[step] = self._ranks.gloo_of(step.groups)
        return self._backends[step]

    def verdict_on(self, cause: str | None) -> ResourceError | None:
        """The verdict on a run in which a collective failed for a cause, such as that it has waited too long.

        The store is not asked here: it may be what does not answer.
        """
        late = "Timed out" in (cause or "")
        if self.on and (late or self._asked.is_set()):
            self._found.wait(_GRACE)
        if self._verdict is not None:
            self._raised = True
            return ResourceError(**self._verdict, code=_CODE)
        states = {rank: self._ranks.state_of(rank) for rank in range(self._ranks.count) if rank != self._ranks.rank}
        parts = silence(states, self.seconds if late else None) if self.on else None
        self._raised = parts is not None
        return None if parts is None else ResourceError(**parts, code=_CODE)

    def look(self) -> None:
        """Looks at where this rank is; asks all when it has waited too long, and answers when it is asked."""
        seconds = self._standing()
        if self._store.check(["asked"]):
            self._asked.set()
            stand = replace(self._stand(), records=_flight_recorder.prefix() if _flight_recorder.records() else None)
            self._store.set(f"stand/{self._ranks.rank}", pack(asdict(stand)))
            # Beside: a recorder asks its device for what has ended, and may not come back from there.
            recorded = threading.Thread(target=_record, args=(self._ranks.rank,), daemon=True)
            recorded.start()
            self._await_verdict(stand.waits)
            recorded.join(_GRACE)
        elif seconds > self.seconds and self._stand().waits:
            self._store.set("asked", "")

    def _standing(self) -> float:
        """For how long this rank has stood where it is now, in seconds."""
        step = self._step
        here = (self._number, step is None, step.executor.at() if step is not None else None)
        if here != self._before:
            self._before, self._since = here, time.monotonic()
        return time.monotonic() - self._since

    def _stand(self) -> Stand:
        """Where this rank stands now."""
        step, seconds = self._step, self._standing()
        at = step.executor.at() if step is not None else None
        known = _instruction(step, at) if step is not None and at is not None else (None, None, None, None)
        return Stand(self._number, step is not None, at, *known, _line_of_main_thread(), seconds)

    def _await_verdict(self, waits: bool) -> None:
        """Makes the verdict, which one rank that waits does from the answers, or awaits it; ends this process if nothing else does."""
        if waits and self._store.add("judges", 1) == 1:
            self._stop.wait(3 * self._pause)
            self._store.set("verdict", pack(self._judged()))
        self._store.wait(["verdict"], datetime.timedelta(seconds=10 * self._pause + _GRACE))
        verdict = self._verdict = unpack(self._store.get("verdict"))
        self._found.set()
        if self._stop.wait(_GRACE_LOOKS * self._pause + _GRACE) or self._raised:
            self._stop.set()
            return
        # The main thread has not come out of where it is: nothing but the end of the process gets it out.
        print(ResourceError(**verdict, code=_CODE), file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)

    def _judged(self) -> dict[str, Any]:
        """What is wrong, from what the ranks have said."""
        count = self._ranks.count
        keys = [f"stand/{rank}" for rank in range(count)]
        said = [Stand(**unpack(self._store.get(key))) if self._store.check([key]) else None for key in keys]
        return judged(said, [self._ranks.state_of(rank) for rank in range(count)])


def _look_on(watch: weakref.ref[Watch], stop: threading.Event, pause: float) -> None:
    """Looks now and then, as long as the watch is there and the process does not end."""
    with contextlib.suppress(dist.DistError, RuntimeError):  # the store has ended, and the run with it
        while not stop.wait(pause):
            one = watch()
            if one is None:
                return
            one.look()
            del one


def _record(rank: int) -> None:
    """Writes what the flight recorder of this rank has, which only adds to what ranks say: a disk that is full prevents nothing else."""
    with contextlib.suppress(OSError, RuntimeError):
        _flight_recorder.write(Path(f"{_flight_recorder.prefix()}{rank}"))


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    """Has the thread end before the process group does."""
    stop.set()
    thread.join(_MOST)


def _instruction(step: CapturedStep, at: int) -> tuple[str, str | None, str | None, str | None]:
    """Of an instruction of a program: its operation, its line, its part of the program, and the collective that it waits for."""
    program = step.executor.program
    (name, place), node = program.instructions()[at], program.nodes()[at]
    found = step.rank_graph.standing_at(node) if node is not None else None
    if found is None:
        return name, place, None, None
    part, micro_batch, collective = found
    return name, place, part if micro_batch is None else f"{part} of micro-batch {micro_batch + 1}", collective


def judged(said: Sequence[Stand | None], states: Sequence[object]) -> dict[str, Any]:
    """The parts of the error for ranks that stand where they say; ``states`` is what is known of the processes of others.

    Returns:
        ``message``, ``place``, ``cause`` and ``hint``.
    """
    behind = _behind(said)
    waiting = [rank for rank, stand in enumerate(said) if stand is not None and stand.waits_for and rank not in behind]
    waiting = waiting or [rank for rank, stand in enumerate(said) if stand is not None and stand.waits]
    first = max(waiting, key=lambda rank: getattr(said[rank], "seconds", 0.0))
    waited = said[first]
    assert waited is not None
    lines = [f"rank {rank} {_told(stand, states[rank])}" for rank, stand in enumerate(said)]
    wait = f"rank {first} has waited {waited.seconds:.1f} s for {waited.waits_for or 'others'}"
    all_there = len(behind) == len(said)
    return {
        "message": f"all ranks wait: {wait}" if all_there else f"{_names(behind)} not arrived, while {wait}",
        "place": waited.place,
        "cause": "\n    ".join(["of where the ranks stand:", *lines]),
        "hint": _hint([said[rank] for rank in behind]) + _recorded(said),
    }


def _recorded(said: Sequence[Stand | None]) -> str:
    """What flight recorders add, if ranks have any."""
    prefixes = {stand.records: None for stand in said if stand is not None and stand.records}
    files = " ".join(f"{prefix}*" for prefix in prefixes)
    return f"; `unisono trace hang {files}` says which collectives each rank has begun" if files else ""


def silence(states: Mapping[int, ProcessState], waited: float | None) -> dict[str, Any] | None:
    """The parts of the error where nobody made a verdict, from what is known of other ranks' processes; ``None`` where that says nothing.

    A collective that failed before it had ``waited`` for the time-out, in seconds, says that a process is gone. That may have ended for
    another that is stopped: then that one is the cause.
    """
    still = [rank for rank, state in states.items() if state.is_still]
    if not any(waited is not None or states[rank].is_stopped for rank in still):
        return None
    return {
        "message": f"{_names(still)} not arrived" + ("" if waited is None else f" within {waited:g} s"),
        "cause": "\n    ".join(
            ["of where the ranks stand:", *(f"rank {rank} {_told(None, states[rank])}" for rank in still)]
        ),
        "hint": _hint([None]),
    }


def _behind(said: Sequence[Stand | None]) -> list[int]:
    """The ranks that others wait for: those that wait for nobody, or else those that are furthest behind."""
    free = [rank for rank, stand in enumerate(said) if stand is None or not stand.waits]
    if free:
        return free
    where = [(stand.step, -1 if stand.at is None else stand.at) for stand in said if stand is not None]
    return [rank for rank, at in enumerate(where) if at == min(where)]


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


def _told(stand: Stand | None, state: object) -> str:
    if stand is not None:
        return str(stand)
    return f"says nothing: {state}" if state else "says nothing"


def _hint(behind: Sequence[Stand | None]) -> str:
    if all(stand is not None and stand.waits for stand in behind):
        return "look at the network between the ranks, and whether a firewall or another program disturbs it"
    if all(stand is None for stand in behind):
        return (
            "look at the end of that rank's log, and at its machine; continue a process that was stopped (`kill -CONT`)"
        )
    if any(stand is not None and not stand.inside for stand in behind):
        return "run every step on every rank, outside of conditions such as `if rank == 0:`; give longer work a longer `timeout=`"
    return "look at what that line does there; give an operation that takes longer a longer `timeout=`"


def _line_of_main_thread() -> str | None:
    """The line of the user's code that the main thread runs."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident) if ident is not None else None
    file, line = user_place(frame) if frame is not None else ("", 0)
    return f"{file}:{line}" if file else None
