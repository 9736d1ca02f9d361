"""The subcommands of ``unisono`` that need Python: ``capture``, ``doctor``, ``kernels`` and ``profile``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import ConfigurationError, HardwareError, UnisonoError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from unisono._doctor import Finding

#: How long the ranks of a measurement may take, in seconds.
_PROFILE_SECONDS = 300.0
_KEYS = ("train_step", "model", "optimizer", "example")


def _reporting(command: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], int]:
    """The command with an exit status: a diagnostic goes to stderr, as those of native commands do."""

    def run(arguments: Sequence[str]) -> int:
        try:
            command(arguments)
        except UnisonoError as error:
            print(f"error{error}".replace("] ", "]: ", 1), file=sys.stderr)
            return 1
        return 0

    return run


@_reporting
def capture(arguments: Sequence[str]) -> None:
    """Prints the text form of a captured step.

    ``FILE.py:FUNCTION`` names a function that takes no arguments and returns a mapping with ``train_step``, ``example``
    and, where there are any, ``model`` and ``optimizer``: the arguments of :func:`unisono.capture`.
    """
    parser = argparse.ArgumentParser(
        prog="unisono capture",
        description="Capture a training step and print its graph.",
        epilog="FUNCTION is called without arguments and returns a mapping with train_step, model, optimizer and example: "
        "the arguments of unisono.capture.",
    )
    _add_step(parser)
    parser.add_argument("-o", "--output", type=Path, help="write the graph to this file instead of stdout")
    options = parser.parse_args(arguments)
    _write(options.output, _captured(options).text())


@_reporting
def kernels(arguments: Sequence[str]) -> None:
    """Prints which operations of a step on one rank become kernels, and why others do not; or these kernels in CUDA C.

    ``FILE.py:FUNCTION`` is that of ``unisono capture``.
    """
    parser = argparse.ArgumentParser(
        prog="unisono kernels",
        description="Print which operations of a training step become kernels with `fuse=True`, and why others do not.",
        epilog="What kernels are: docs/design/018-row-kernels.md.",
    )
    _add_step(parser)
    parser.add_argument("--cuda", action="store_true", help="print the kernels as one program of CUDA C")
    parser.add_argument("--match-eager", action="store_true", help="those with the bits of eager PyTorch")
    parser.add_argument("-o", "--output", type=Path, help="write to this file instead of stdout")
    options = parser.parse_args(arguments)
    graph = _captured(options).native.run_passes()[0]
    from unisono import _devices, _native

    if not options.match_eager:
        graph = graph.for_kernels(cuda=options.cuda)
    if not (options.match_eager or options.cuda):
        graph = graph.with_wide_products(_devices.narrow_types())
    if options.cuda:
        texts = graph.kernel_texts(cuda=True, match_eager=options.match_eager)
        _write(options.output, _native.cuda_source(texts)[0])
    else:
        _write(options.output, graph.kernels(match_eager=options.match_eager))


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="what makes the step")
    parser.add_argument(
        "--device",
        metavar="KIND",
        help="capture for this kind of device, cpu or cuda, or for a GPU such as h100, instead of the parameters' own (cpu where they "
        "are on meta)",
    )


def _captured(options: argparse.Namespace) -> Any:
    """The graph of the step that the named function makes."""
    made = _made(options.function)

    import unisono

    return unisono.capture(
        made["train_step"],
        model=made.get("model"),
        optimizer=made.get("optimizer"),
        example=made["example"],
        device=options.device,
    )


def doctor(arguments: Sequence[str]) -> int:
    """Looks at all that a run needs, and says for each how it is and what to do; under ``torchrun`` at the clocks of all ranks too.

    With ``--device`` it tries a device instead: kernels, steps, streams, collectives, rates and memory.

    Returns:
        1 where something has failed that steps cannot do without, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="unisono doctor",
        description="Look at all that a run needs: PyTorch, networks, devices, folders, clocks; say what to do where it is not well.",
        epilog="The exit status is 1 where something failed; warnings, and what is skipped, do not count.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON: name, status, text, hint")
    parser.add_argument(
        "--device",
        metavar="TYPE",
        nargs="?",
        const="",
        help="try a device instead, in a few minutes: operators against the processor, five small steps against plain PyTorch, "
        "random numbers, streams, collectives, rates, memory, timeline. TYPE is what PyTorch calls it; without TYPE it is the accelerator "
        "that is there, and `cpu` tries the processor. Two devices of one machine are connected, or those of all ranks under `torchrun`",
    )
    options = parser.parse_args(arguments)
    from unisono import _doctor

    look = _machine() if options.device is None else _one_device(options.device)
    found = []
    for finding in look:
        found.append(finding)
        if not options.json:
            print(finding, flush=True)
    if options.json and found:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    return int(any(finding.status == _doctor.FAILED for finding in found))


def _machine() -> Iterable[Finding]:
    """What this machine is found to be; nothing on all ranks but the first."""
    from unisono import _doctor

    clocks = _doctor.clocks_of_ranks()
    return () if clocks is None else itertools.chain(_doctor.findings(), clocks)


def _one_device(kind: str) -> Iterable[Finding]:
    from unisono import _doctor_device

    return _doctor_device.findings(kind, lambda what: print(what, file=sys.stderr, flush=True))


def _made(name: str) -> Mapping[str, Any]:
    """What the named function returns, checked."""
    file, _, function = name.rpartition(":")
    usage = "name a file and a function in it: unisono capture train.py:make_step"
    if not file:
        raise ConfigurationError(f"`{name}` names no function", code="U0120", hint=usage)
    make = _function(Path(file), function, usage)
    needed = _needed(make)
    if needed:
        raise ConfigurationError(
            f"`{name}` takes arguments: {', '.join(needed)}",
            code="U0120",
            place=_place_of(make),
            hint="give them defaults: it is called without arguments",
        )
    made = _run(make, f"`{name}`", Path(file))
    if not isinstance(made, Mapping) or "train_step" not in made or "example" not in made:
        found = f"keys {sorted(map(str, made))}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise ConfigurationError(
            f"`{name}` returns {found}",
            code="U0120",
            hint='return {"train_step": ..., "model": ..., "optimizer": ..., "example": (...)}',
        )
    unknown = [key for key in made if key not in _KEYS]
    if unknown:
        hint = f"known: {', '.join(_KEYS)}"
        raise ConfigurationError(f"`{name}` returns an unknown key `{unknown[0]}`", code="U0012", hint=hint)
    return made


def _function(file: Path, function: str, usage: str) -> Callable[[], Any]:
    if not file.is_file():
        raise ConfigurationError(f"cannot read `{file}`: there is no such file", code="U0010", hint=usage)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"`{file}` is no Python file", code="U0010", hint=usage)
    module = importlib.util.module_from_spec(spec)
    # a script may import its neighbours, and dataclasses look for their module
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[file.stem] = module
    loader = spec.loader
    _run(lambda: loader.exec_module(module), f"importing `{file}`", file)
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigurationError(f"`{file}` has no function `{function}`", code="U0120", hint=usage)
    return found


def _needed(function: Callable[..., Any]) -> list[str]:
    """The names of arguments that a call has to give, as far as the function says so."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of a library in C
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in several]


def _place_of(function: Callable[..., Any]) -> str | None:
    """Where a function stands."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _run(call: Callable[[], Any], what: str, file: Path) -> Any:
    """What a call of the user's gives; what it raises is a diagnostic with the line of the file that it came through last."""
    try:
        return call()
    except UnisonoError:
        raise
    except SystemExit as end:
        raise ConfigurationError(
            f"{what} ends Python with status {end.code}",
            code="U0120",
            place=_place_in(file, end),
            hint='what runs only as a script stands below `if __name__ == "__main__":`',
        ) from None
    except Exception as error:
        raise ConfigurationError(
            f"{what} fails: {type(error).__name__}: {error}",
            code="U0120",
            place=_place_in(file, error),
            hint=f"`python {file}` should run by itself",
        ) from error


def _place_in(file: Path, error: BaseException) -> str | None:
    """The last line of a file that an error came through, or that cannot be read."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        is_it = Path(error.filename).resolve() == file.resolve()
        return f"{file if is_it else error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f"{file}:{lines[-1]}" if lines else None


@_reporting
def profile(arguments: Sequence[str]) -> None:
    """Measures this machine with a number of ranks and prints the cluster description; or mends one by timelines of what ran."""
    parser = argparse.ArgumentParser(
        prog="unisono profile",
        description="Measure this machine, its accelerators if it has any, and print the cluster description that plans are made for: "
        "rates, links, and what single operations take in a captured step or in standard ones. With --from, mend a description by "
        "what ran.",
    )
    parser.add_argument(
        "graph",
        nargs="?",
        metavar="GRAPH",
        type=Path,
        help="measure the operations of this step, as `unisono capture` wrote it; with --from, find its calls in traces of a profiler, "
        "and plan it again",
    )
    parser.add_argument(
        "--ranks",
        type=_positive,
        help="how many local ranks take part (default: 1); processes that `torchrun` started measure together without it",
    )
    parser.add_argument(
        "--links",
        action="store_true",
        help="measure what collectives take in groups of many shapes and sizes, and nothing else that --known FILE says",
    )
    parser.add_argument(
        "--nodes",
        type=_positive,
        help="how many nodes --links takes the ranks to be on (default: as `torchrun` started them, else 1)",
    )
    parser.add_argument(
        "--known",
        metavar="FILE",
        type=Path,
        help="begin with this description, and measure only what it does not say; with --from, the description to mend, or a preset",
    )
    parser.add_argument(
        "--from",
        dest="timelines",
        metavar="TIMELINE",
        nargs="+",
        type=Path,
        help="measure nothing, and say what of the description is wrong by what ran: the `measured` folder of `step.write_timelines`, or "
        "traces of PyTorch's profiler, recorded with shapes; each folder is a run, files are one run together",
    )
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        type=_axes,
        help="with --from, the axes along which the ranks ran the step: data=2,tensor=4",
    )
    parser.add_argument("--json", action="store_true", help="with --from and -o, print what is wrong as JSON")
    parser.add_argument("-o", "--output", type=Path, help="write the description to this file instead of stdout")
    options = parser.parse_args(arguments)
    if options.timelines is not None:
        if options.known is None:
            parser.error("--from needs the description that is to be mended: --known FILE or PRESET")
        if options.json and options.output is None:
            parser.error("--json prints to stdout, so that the description needs a file: -o FILE")
        _mend(options)
        return
    if options.links and options.graph is not None:
        parser.error("--links measures no operations: leave GRAPH out")
    if options.nodes is not None and not options.links:
        parser.error("--nodes is for --links")
    joined = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if joined is not None and options.ranks not in (None, int(joined)):
        parser.error(f"--ranks {options.ranks} in a run of {joined} ranks: leave it out")
    is_first = joined is None or os.environ["RANK"] == "0"
    known, message = _readable(options.known), _message(options.graph)
    if options.links:
        _check_links(int(joined or options.ranks or 1), options.nodes or 1, known, options.known)
    nodes = (options.nodes or 0) if options.links else None
    if is_first:
        print(f"measuring with {joined or options.ranks or 1} rank(s) ...", file=sys.stderr)
    start = time.monotonic()
    if joined is None:
        text = _measured(options.ranks or 1, known, message, nodes)
    else:
        # A launcher of another name gives the same variables.
        os.environ.setdefault("TORCHELASTIC_RUN_ID", "profile")
        text = measured_by_all(known, message, nodes)
    if text is not None:
        print(f"done in {time.monotonic() - start:.1f} s", file=sys.stderr)
        _write(options.output, text)


def _check_links(ranks: int, nodes: int, known: str | None, file: Path) -> None:
    """Refuses nodes that ranks cannot be on, and a description that cannot have measured links in place of its own."""
    from unisono import _native
    from unisono._links import on_nodes

    on_nodes(ranks, nodes)
    if known is None:
        return
    _native.cluster_ranks(known, str(file))
    if "preset" in tomllib.loads(known):
        hint = "write all of it, as `unisono cluster h100:2x8` prints it, and measure for that"
        raise ConfigurationError(f"`{file}` has the network of a preset", code="U0201", hint=hint)


def _mend(options: argparse.Namespace) -> None:
    """Says on stderr, or as JSON, what of a description is wrong by what ran, and writes one that is right."""
    from unisono import _native, _refit
    from unisono._arguments import cluster_text
    from unisono._message import pack
    from unisono.plans import Plan

    known = cluster_text(str(options.known))
    graph = None if options.graph is None else _native.Graph.read(options.graph)
    mesh = options.mesh or {"ranks": options.ranks or 1}
    folders = [[one] for one in options.timelines if one.is_dir()]
    files = [one for one in options.timelines if not one.is_dir()]
    found = _refit.refitted(known, [*folders, files] if files else folders, graph, mesh)
    if graph is not None:
        settings = {"mesh": mesh}
        found = _refit.replanned(found, Plan(graph.plan(known, pack(settings)), graph, known, settings=settings))
    if options.json:
        print(json.dumps({**found.figures, "replanned": found.replanned}, indent=1))
    else:
        print(found.text, file=sys.stderr)
    _write(options.output, found.cluster)


def _readable(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"cannot read `{file}`: {why}", code="U0010") from None


def _message(file: Path | None) -> bytes | None:
    """The captured step in a file."""
    from unisono import _native

    return None if file is None else _native.Graph.read(file).message()


def _axes(text: str) -> dict[str, int]:
    """The axes of a mesh, such as ``data=2,tensor=4``."""
    axes = [axis.partition("=") for axis in text.split(",")]
    if not all(name and size.isdecimal() and int(size) > 0 for name, _, size in axes):
        raise argparse.ArgumentTypeError(f"`{text}` is no mesh: write data=2,tensor=4")
    return {name: int(size) for name, _, size in axes}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of ranks")
    return int(text)


_RANK = """
import sys
from pathlib import Path
from unisono._commands import measured_by_all
folder, nodes = Path(sys.argv[1]), sys.argv[2:]
known, graph = folder / "known.toml", folder / "graph"
text = measured_by_all(
    known.read_text() if known.exists() else None,
    graph.read_bytes() if graph.exists() else None,
    int(nodes[0]) if nodes else None,
)
if text is not None:
    (folder / "cluster.toml").write_text(text)
"""


def measured_by_all(known: str | None, graph: bytes | None, nodes: int | None) -> str | None:
    """What the ranks of a run measure, which all call this; for rank 0.

    With a number of nodes that the ranks are on, only what lies between them; with 0 as many nodes as they were started on.
    """
    from unisono import _devices
    from unisono._profile import profiled, profiled_links
    from unisono._ranks import Ranks

    ranks = Ranks()

    def tell(what: str) -> None:
        if ranks.rank == 0:
            print(f"  {what}", file=sys.stderr, flush=True)

    if nodes is None:
        text = profiled(ranks, _devices.current(), known, graph, tell)
    else:
        text = profiled_links(ranks, _devices.current(), known, nodes or None, tell)
    return text if ranks.rank == 0 else None


def _measured(ranks: int, known: str | None, graph: bytes | None, nodes: int | None) -> str:
    """What rank 0 measured with a number of processes. No process is left behind."""
    import torch

    # The ranks meet at a store of this process, as they do under `torchrun`, so that no other process can be given its port.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        if known is not None:
            Path(folder, "known.toml").write_text(known)
        if graph is not None:
            Path(folder, "graph").write_bytes(graph)
        processes = []
        try:
            for rank in range(ranks):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
                # cores are shared by the ranks, as `torchrun` has it
                shared = {
                    "TORCHELASTIC_RUN_ID": "profile",
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "OMP_NUM_THREADS": "1",
                }
                command = [sys.executable, "-c", _RANK, folder, *([] if nodes is None else [str(nodes)])]
                processes.append(subprocess.Popen(command, env=os.environ | place | meeting | shared))
            _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return Path(folder, "cluster.toml").read_text()


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits until all have ended well; the first that fails ends the measurement."""
    end = time.monotonic() + _PROFILE_SECONDS
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed or time.monotonic() > end:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        status = process.poll()
        if status != 0:
            what = (
                f"ended with status {status}" if status is not None else f"was not done within {_PROFILE_SECONDS:.0f} s"
            )
            raise HardwareError(
                f"the measurement failed: rank {rank} {what}", code="U0321", hint="its output above says why"
            )


def _write(output: Path | None, text: str) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write `{output}`: {error.strerror}", code="U0010") from None
