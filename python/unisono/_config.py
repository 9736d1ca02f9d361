"""Settings of ``parallelize`` in a TOML file: the same names, the same values."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono._arguments import names_preset
from unisono.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Settings that name files, as the file has them: relative to its own folder.
_FILES = ("plan", "cluster", "cache")

#: What a setting is in a file, if its default does not say so.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "mesh": ((dict, str), "a table of axes with their sizes, or 'auto'"),
    "pins": ((dict,), "a table of placements per axis for each name"),
    "forbid": ((dict, list, str), "kinds of collectives, or a table of them by axis"),
    "memory_limit": ((int, float, str), "a number of bytes, or a text such as '4 GiB'"),
    **dict.fromkeys(_FILES, ((str,), "the path of a file or folder")),
    "timeout": ((int, float), "a number of seconds"),
    "micro_batches": ((int,), "a whole number"),
    "seed": ((int,), "a whole number"),
    "fuse": ((bool, str), "true, false or 'auto'"),
    "recompute": ((str,), "'none' or 'full'"),
    "reduce_dtype": ((str,), "an element type such as 'float32'"),
    "offload": ((str,), "'none', 'activations', 'optimizer' or 'full'"),
    "schedule": ((str,), "the name of a schedule such as '1f1b', or the path of a CSV file of actions"),
    "stages": ((int,), "a whole number"),
    "chunks": ((int,), "a whole number"),
    "cuts": ((list,), "a list of names of modules or numbers of operations"),
    "cluster": ((str,), "the path of a description, or a preset such as 'h100:8x8'"),
}
_PLAIN: dict[type, str] = {bool: "true or false", int: "a whole number", str: "a text"}


def with_file(settings: Mapping[str, Any], file: str | Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, those that have their default taken from a file where it has them.

    Raises:
        ConfigurationError: the file cannot be read, or has a setting or a kind of value that there is none of.
    """
    path = Path(file)
    try:
        text = path.read_text()
        read = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read `{path}`: {error.strerror}", code="U0010") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"`{path}` is not TOML: {error}", code="U0011") from None
    for name, value in read.items():
        place = f"{path}:{_line(text, name)}"
        if name not in settings:
            near = difflib.get_close_matches(name, settings, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"settings are {', '.join(settings)}"
            raise ConfigurationError(f"there is no setting `{name}`", code="U0012", place=place, hint=hint)
        kinds, what = _KINDS.get(name) or ((type(defaults[name]),), _PLAIN[type(defaults[name])])
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigurationError(f"`{name}` is {value!r}", code="U0012", place=place, hint=f"give {what}")
    files = [name for name in _FILES if name in read]
    if "cluster" in files and names_preset(read["cluster"], path.parent):
        files.remove("cluster")
    if str(read.get("schedule", "")).endswith(".csv"):
        files.append("schedule")
    read |= {name: str(path.parent / read[name]) for name in files}
    return {name: read[name] if name in read and value is defaults[name] else value for name, value in settings.items()}


def _line(text: str, name: str) -> int:
    """The line in which a setting begins."""
    key = re.compile(rf"""\s*\[{{0,2}}\s*["']?{re.escape(name)}["']?\s*[].=]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if key.match(line)), 1)
