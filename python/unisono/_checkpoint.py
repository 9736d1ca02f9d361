"""Checkpoints: folders in the format of ``torch.distributed.checkpoint``, written aside and renamed."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import save as write
from torch.distributed.checkpoint.stateful import Stateful

from unisono._state_dict import Entry, entries, groups_in, leaves, load_state_dict, require_names_alike, require_shape
from unisono.errors import ConfigurationError, UnisonoError

if TYPE_CHECKING:
    from unisono.session import Session

#: What the step has in a checkpoint; the rest is the user's.
_OWN = ("model", "optimizer", "kept")

#: What the names of settings of optimizers begin with.
_GROUPS = "optimizer.param_groups."


def save(session: Session, state: dict[str, Any], folder: Path, more: Mapping[str, Any]) -> None:
    """See :meth:`unisono.parallel.ParallelStep.save`."""
    _require_stateful(more)
    folder = folder.absolute()
    partial, before = _beside(folder, "partial"), _beside(folder, "before")

    def make_room() -> None:
        _bring_back(folder)
        _require_nothing_else(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)

    def put_in_place() -> None:
        if folder.exists():
            folder.rename(before)
        partial.rename(folder)
        shutil.rmtree(before, ignore_errors=True)

    _alone(session, folder, make_room)
    try:
        with _without_ranks(session) as settings:
            write({**state, **more}, checkpoint_id=partial, **settings)
    except CheckpointException as error:
        raise _unwritten(folder, _told(error)) from None
    _alone(session, folder, put_in_place)


def load(session: Session, given: dict[str, Any], folder: Path, more: Mapping[str, Any], *, strict: bool) -> None:
    """See :meth:`unisono.parallel.ParallelStep.load`."""
    _require_stateful(more)
    folder = folder.absolute()
    saved: set[str] = set()

    def check() -> None:
        _bring_back(folder)
        saved.update(_require_whole(folder, list(entries(session)), more, strict=strict))

    _alone(session, folder, check)
    _leave_only(given, session.ranks.tell(sorted(saved)))
    try:
        both = {**given, **more}
        with _without_ranks(session) as settings:
            read(both, checkpoint_id=folder, **settings)
        given = {name: both[name] for name in given}
    except CheckpointException as error:
        raise ConfigurationError(
            f"reading the checkpoint `{folder}` failed, after a part of it was read",
            code="U0206",
            cause=_told(error),
            hint="the state is partly that of the checkpoint now: load another one, or start again",
        ) from None
    load_state_dict(session, given, strict=strict)


@contextlib.contextmanager
def _without_ranks(session: Session) -> Iterator[dict[str, Any]]:
    """The setting for one rank, of which PyTorch would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield {"no_dist": session.ranks.count == 1}


# Checks.


def _require_stateful(more: Mapping[str, Any]) -> None:
    for name, one in more.items():
        if name in _OWN:
            hint = "the step's own state is saved and loaded under it"
            raise ConfigurationError(f"`{name}` is given beside the step", code="U0206", hint=hint)
        if not isinstance(one, Stateful):
            cause, hint = "it has no `state_dict` and `load_state_dict`", "keep numbers in an object that has both"
            raise ConfigurationError(f"`{name}` is a {type(one).__name__}", code="U0206", cause=cause, hint=hint)


def _require_nothing_else(folder: Path) -> None:
    """Refuses to replace what is no checkpoint."""
    there = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in there if name != ".metadata" and not name.endswith(".distcp")]
    if others:
        raise ConfigurationError(
            f"`{folder}` has other files than a checkpoint's: {', '.join(f'`{name}`' for name in others[:3])}",
            code="U0010",
            cause="the checkpoint in a folder is replaced as a whole",
            hint="give a folder of its own",
        )


def _require_whole(folder: Path, entries_here: list[Entry], more: Mapping[str, Stateful], *, strict: bool) -> list[str]:
    """Refuses a checkpoint that is not complete, or not of this step; the names that it has."""
    if not (folder / ".metadata").is_file():
        hint = "give the folder that `save` has written"
        raise ConfigurationError(
            f"`{folder}` is no complete checkpoint", code="U0010", cause="`.metadata` is not there", hint=hint
        )
    try:
        metadata = FileSystemReader(folder).read_metadata()
    except Exception as error:
        raise _damaged(folder, f"`.metadata` cannot be read: {error}") from None
    for info in (metadata.storage_data or {}).values():
        file = folder / info.relative_path
        size = file.stat().st_size if file.is_file() else -1
        if size < info.offset + info.length:
            raise _damaged(folder, f"`{info.relative_path}` is {'not there' if size < 0 else 'too short'}")
    saved = metadata.state_dict_metadata
    mine = {entry.name: entry for entry in entries_here}
    # What is no tensor may be a dictionary, of which each value is saved under a name of its own.
    inside = tuple(f"{entry.name}." for entry in entries_here if entry.put is not None)
    missing = [name for name, entry in mine.items() if name not in saved and entry.put is None]
    own = [name for name in saved if name.split(".")[0] in _OWN and not name.startswith((_GROUPS, *inside))]
    if strict:
        require_names_alike(f"the checkpoint `{folder}`", missing, [name for name in own if name not in mine])
    for name, one in more.items():
        if one.state_dict() and not any(key.startswith(f"{name}.") for key in saved):
            hint = "it was saved without it: leave it out"
            raise ConfigurationError(f"the checkpoint `{folder}` has no `{name}`", code="U0206", hint=hint)
    for name in own:
        if name in mine:
            require_shape(f"the checkpoint `{folder}`", mine[name], getattr(saved[name], "size", None))
    return list(saved)


def _leave_only(given: dict[str, Any], saved: Collection[str]) -> None:
    """Leaves in a state dict what a checkpoint has, and makes place for the settings of optimizers that it has."""
    for path, value in list(leaves(given)):
        if not isinstance(value, Mapping) and ".".join(path) not in saved:
            place = given
            for key in path[:-1]:
                place = place[key]
            del place[path[-1]]
    groups = groups_in(given)
    settings = [name.removeprefix(_GROUPS).split(".", 1) for name in saved if name.startswith(_GROUPS)]
    if groups:
        given["optimizer"]["param_groups"] = [
            {key: groups[index].get(key) if index < len(groups) else None for at, key in settings if int(at) == index}
            for index in range(max((int(at) + 1 for at, _ in settings), default=0))
        ]


# Files.


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _bring_back(folder: Path) -> None:
    """Puts the checkpoint that was there before in its place again, where a save was cut off between taking it away and the new one."""
    before = _beside(folder, "before")
    if not folder.exists() and before.exists():
        before.rename(folder)


def _alone(session: Session, folder: Path, work: Callable[[], None]) -> None:
    """Has rank 0 do something with files; what fails there is raised everywhere."""
    error: UnisonoError | None = None
    if session.ranks.rank == 0:
        try:
            work()
        except OSError as met:
            error = _unwritten(folder, met.strerror or str(met))
        except UnisonoError as met:
            error = met
    session.ranks.raise_together(error)


def _told(error: Any) -> str:
    return "; ".join(dict.fromkeys(str(failure[0]) for failure in error.failures.values()))


def _unwritten(folder: Path, cause: str) -> ConfigurationError:
    return ConfigurationError(f"the checkpoint `{folder}` cannot be written", code="U0010", cause=cause)


def _damaged(folder: Path, cause: str) -> ConfigurationError:
    hint = "load another one; nothing was changed"
    return ConfigurationError(f"the checkpoint `{folder}` is damaged", code="U0206", cause=cause, hint=hint)
