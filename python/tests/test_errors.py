import pytest

from unisono import _native, errors


def test_a_native_diagnostic_arrives_as_the_class_of_its_audience_with_its_parts():
    with pytest.raises(errors.InternalError) as caught:
        _native.raise_internal_error("two and two make five")
    assert caught.value.code == "U0001"
    assert caught.value.message == "two and two make five"
    assert "report it" in (caught.value.hint or "")
    assert str(caught.value).startswith("[U0001] two and two make five\n  hint: ")
