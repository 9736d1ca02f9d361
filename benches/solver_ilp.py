"""The solver beside an integer program (HiGHS, by scipy) on the same problems: optimum and processor time.

Usage: python benches/solver_ilp.py LAYERS ...
"""

import subprocess
import sys
import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix


def read(layers: int) -> tuple[list[int], list[tuple[list[int], np.ndarray]], int, int]:
    """Sizes, factors, our microseconds and our optimum."""
    command = ["cargo", "bench", "-q", "-p", "unisono-solve", "--bench", "depth", "--", "--print", str(layers)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    *body, solved = [line for line in lines if line]
    numbers = [np.array(line.split(), dtype=np.int64) for line in body]
    factors = [(scope.tolist(), costs) for scope, costs in zip(numbers[1::2], numbers[2::2], strict=True)]
    microseconds, cost = map(int, solved.split()[1:])
    return numbers[0].tolist(), factors, microseconds, cost


def integer_program(sizes: list[int], factors: list[tuple[list[int], np.ndarray]]) -> tuple[float, float, int]:
    """Optimum, processor seconds of HiGHS alone, and how many columns its program has."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    objective = [np.zeros(starts[-1])]
    upper = [np.ones(starts[-1])]
    rows, columns, values, right = [], [], [], []

    def constrain(terms: list[tuple[int, float]], equals: float) -> None:
        for column, value in terms:
            rows.append(len(right))
            columns.append(column)
            values.append(value)
        right.append(equals)

    for start, size in zip(starts, sizes, strict=False):
        constrain([(int(start) + state, 1.0) for state in range(size)], 1.0)
    count = int(starts[-1])
    for scope, listed in factors:
        free = np.where(listed < 0, 0.0, 1.0)
        costs = np.where(listed < 0, 0, listed) / 1e6
        if len(scope) == 1:
            own = slice(int(starts[scope[0]]), int(starts[scope[0]]) + sizes[scope[0]])
            objective[0][own] += costs
            upper[0][own] = np.minimum(upper[0][own], free)
            continue
        a, b = scope
        cells = count + np.arange(sizes[a] * sizes[b]).reshape(sizes[a], sizes[b])
        for i in range(sizes[a]):
            constrain([(int(cell), 1.0) for cell in cells[i]] + [(int(starts[a]) + i, -1.0)], 0.0)
        for j in range(sizes[b]):
            constrain([(int(cell), 1.0) for cell in cells[:, j]] + [(int(starts[b]) + j, -1.0)], 0.0)
        objective.append(costs)
        upper.append(free)
        count += cells.size
    matrix = csr_matrix((values, (rows, columns)), shape=(len(right), count))
    integrality = np.concatenate([np.ones(starts[-1]), np.zeros(count - int(starts[-1]))])
    begin = time.process_time()
    result = milp(
        np.concatenate(objective),
        # scipy's annotations know only single numbers here.
        constraints=LinearConstraint(matrix, right, right),  # pyright: ignore[reportArgumentType]
        bounds=Bounds(0, np.concatenate(upper)),  # pyright: ignore[reportArgumentType]
        integrality=integrality,
        options={"mip_rel_gap": 0},
    )
    return result.fun * 1e6, time.process_time() - begin, count


def main() -> None:
    print("layers variables  columns   ours ms   HiGHS s   ratio  optimum: ours, HiGHS over ours")
    for layers in map(int, sys.argv[1:]):
        sizes, factors, microseconds, cost = read(layers)
        optimum, seconds, columns = integer_program(sizes, factors)
        print(
            f"{layers:6} {len(sizes):9} {columns:8} {microseconds / 1e3:9.1f} {seconds:9.1f} "
            f"{seconds * 1e6 / microseconds:7.0f}  {cost} {optimum / cost - 1:+.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
