import re
from pathlib import Path

import pytest

from unisono import _native, errors


def test_a_native_diagnostic_arrives_as_the_class_of_its_audience_with_its_parts():
    with pytest.raises(errors.InternalError) as caught:
        _native.raise_internal_error("two and two make five")
    assert caught.value.code == "U0001"
    assert caught.value.message == "two and two make five"
    assert "report it" in (caught.value.hint or "")
    assert str(caught.value).startswith("[U0001] two and two make five\n  hint: ")


def test_every_code_has_a_section_in_the_page_that_errors_link_to():
    root = Path(__file__).parents[2]
    codes = re.findall(r"^    [A-Z_]+ = (\d+), ", (root / "crates/base/src/codes.rs").read_text(), re.MULTILINE)
    assert len(codes) > 50
    page = (root / "docs/errors.md").read_text()
    sections = dict(zip(*[iter(re.split(r"^## (U\d{4})$", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert list(sections) == [f"U{int(code):04}" for code in codes]
    for code, section in sections.items():
        assert re.search(r"\*\*.+\.\*\* .+\n\nWhat to do: .+", section), code
        assert f"see docs/errors.md#{code.lower()}" in str(errors.StepError("so it is", code=code))
