"""Rows of the operation table beside the schemas of this PyTorch."""

from __future__ import annotations

import re

import pytest
import torch
from rule_exam import overload, rows


def written(schema):
    return [position for position, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]


def plain(schema):
    """The arguments and returns of a PyTorch schema as rows write them."""
    kind = lambda item: re.sub(r"\[\d+\]", "[]", str(item.real_type if hasattr(item, "real_type") else item.type))  # noqa: E731
    text = lambda item: kind(item).replace("SymInt", "int").replace("number", "Scalar")  # noqa: E731
    return [(text(a), a.name) for a in schema.arguments], [text(r) for r in schema.returns]


def parsed(text):
    """A row's schema in the same form."""
    return plain(torch._C.parse_schema("x::x" + text))


@pytest.mark.parametrize("name", rows())
def test_a_row_fits_the_schema_of_this_pytorch(name):
    row, schema = rows()[name], overload(name)._schema
    names = lambda found: ([(kind, name) for kind, name in found[0]], found[1])  # noqa: E731
    (given, returns), (known, made) = names(plain(schema)), names(parsed(row["schema"]))
    # What is a tensor to PyTorch may be an undefined one.
    undefined = [(kind.replace("Optional[Tensor]", "Tensor"), name) for kind, name in known]
    assert all(one in choice for one, *choice in zip(given, known, undefined, strict=False))
    assert len(given) >= len(known)
    assert returns == made
    # The group of a collective is the last argument, whose type differs between releases.
    assert all(a.has_default_value() or a.name == "group_name" for a in schema.arguments[len(known) :])
    arguments = [(a.name, str(a.type)) for a in schema.arguments]
    for form in filter(None, [row["in_place"], row["out"]]):
        other = overload(form)._schema
        theirs = [(a.name, str(a.type)) for a in other.arguments]
        if form == row["in_place"]:
            assert theirs == arguments
            assert written(other) == list(range(len(schema.returns)))
        else:
            assert theirs[:-1] == arguments
            assert written(other) == [len(arguments)]
    if row["with_tensor"]:
        assert len(overload(row["with_tensor"])._schema.arguments) >= len(arguments)
    aliased = any(r.alias_info for r in schema.returns) and not schema.is_mutable
    assert aliased <= (row["memory"] != "own")
    for single, roles in row["list_of"]:
        one = overload(single)._schema.arguments
        assert len(roles) == len(one)
        kept = [(role, a) for role, a in zip(roles, one, strict=True) if role != "neutral"]
        assert len(kept) == len(schema.arguments)
        for (role, _), a in zip(kept, schema.arguments, strict=True):
            assert (role == "each") == str(a.type).startswith("List[Tensor")
            assert (role == "static") == ("Tensor" not in str(a.type))


def test_every_random_operator_of_this_pytorch_is_known_as_such():
    known = rows()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if not name.startswith("aten::") or schema.is_mutable:
            continue
        try:
            op = overload(name)
        except AttributeError:
            continue
        if torch.Tag.nondeterministic_seeded not in op.tags:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        by_schema = any("Generator" in str(a.type) or a.name in ("dropout_p", "dropout") for a in schema.arguments)
        assert known[name]["random"] != "no" if name in known else by_schema, name
