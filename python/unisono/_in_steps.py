"""What collectives take in the programs of a step, beside what they take alone, and how late ranks come to them.

In a step ranks do not come to a collective at the same moment, and what it reads and writes is in no cache. Alone, one after the other, is
how they are measured in :mod:`unisono._links`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono import _native
from unisono._links import Layout, Shape, inserted, without
from unisono._measured_programs import Exchanged

#: The table of a description.
_TABLE = "in_steps"
#: The kinds that it has.
_KINDS = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"))
#: By which factor a size may be another than one that was seen until it is seen too.
_ALIKE = 4
#: A collective that took less than this part of what it takes alone was not measured: what was taken off for waiting, on a busy machine,
#: was more than the collective itself took. It is measured again another time.
_LEAST = 1 / 16


@dataclass
class _Seen:
    """What was seen of the groups of one shape.

    Attributes:
        times: how many times as long as alone collectives took, by kind and bytes.
        late: of how late the last rank comes the nanoseconds that there always are, and the part of the time since ranks last met.
        points: what each collective that is measured now says of that: the time since ranks last met, and how late the last one came.
    """

    times: dict[str, dict[int, float]] = field(default_factory=dict)
    late: tuple[float, float] | None = None
    points: list[tuple[float, float]] = field(default_factory=list)

    def lateness(self) -> tuple[float, float] | None:
        """The two numbers; what was known already counts as much as what was measured now."""
        if not self.points:
            return self.late
        start, part = _native.least_squares(
            [[1.0, since] for since, _ in self.points], [late for _, late in self.points]
        )
        return (start, part) if self.late is None else ((start + self.late[0]) / 2, (part + self.late[1]) / 2)


@dataclass
class InSteps:
    """What was seen, by shape of group.

    Attributes:
        layout: how ranks lie on nodes.
        seen: what was seen.
    """

    layout: Layout
    seen: dict[Shape, _Seen] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Mapping[str, Any], layout: Layout) -> InSteps:
        """What a cluster description says."""
        found = cls(layout)
        for table in said.get(_TABLE, []):
            times = {kind: dict(rows) for kind, rows in table.items() if kind in _KINDS}
            late = (table.get("late_ns", 0.0), table.get("late", 0.0)) if {"late_ns", "late"} & table.keys() else None
            found.seen[tuple(table["shape"])] = _Seen(times, late)
        return found

    def lacks(self, graph: _native.Graph, mesh: Mapping[str, int]) -> bool:
        """Whether a program has collectives of which nothing is known, nor of any that is nearly as large."""
        shapes = self.layout.along(mesh)
        wanted = [one for one in graph.collectives() or () if one[0] in _KINDS and one[1] in shapes]
        return any(not self._knows(shapes[axis], kind, size) for kind, axis, size, _ in wanted)

    def _knows(self, shape: Shape, kind: str, size: int) -> bool:
        seen = self.seen.get(shape, _Seen()).times.get(kind, {})
        return any(max(size, one) <= _ALIKE * max(min(size, one), 1) for one in seen)

    def add(self, taken: Exchanged, text: str, mesh: Mapping[str, int]) -> None:
        """Adds what was measured of a program along the axes of a mesh; the description says what collectives take alone.

        What is known already counts as much.
        """
        alone, axes, shapes = without(text, _TABLE), list(mesh.items()), self.layout.along(mesh)
        for (kind, axis, size), nanos in taken.collectives.items():
            if axis in shapes and kind in _KINDS:
                expected = _native.collective_ns(alone, axes, axis, kind, size)
                times = nanos / max(expected, 1.0)
                if times < _LEAST:
                    continue
                rows = self._of(shapes[axis]).times.setdefault(kind, {})
                rows[size] = math.sqrt(rows.get(size, times) * times)
        for axis, points in taken.late.items():
            if axis in shapes:
                self._of(shapes[axis]).points.extend(points)

    def _of(self, shape: Shape) -> _Seen:
        return self.seen.setdefault(shape, _Seen())

    def written(self, text: str) -> str:
        """A description that says so."""
        lines = list(self._lines())
        return inserted(without(text, _TABLE), lines) if lines else text

    def _lines(self) -> Iterator[str]:
        for shape, seen in sorted(self.seen.items()):
            yield from ("", f"[[{_TABLE}]]", f"shape = {list(shape)}")
            late = seen.lateness()
            if late is not None:
                yield from (f"late_ns = {late[0]:.1f}", f"late = {late[1]:.4f}")
            for kind, rows in sorted(seen.times.items()):
                yield f"{kind} = [{', '.join(f'[{size}, {times:.3f}]' for size, times in sorted(rows.items()))}]"
