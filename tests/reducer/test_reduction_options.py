"""The options of a reduction, as arguments and as environment variables."""

import pytest

from easyddl.reducer import reduction_options


def test_the_argument_precedes_the_variable(monkeypatch):
    assert reduction_options.requested(None, False, None) == reduction_options.ReductionOptions()
    monkeypatch.setenv("EASYDDL_WIRE_DTYPE", " bfloat16 ")
    monkeypatch.setenv("EASYDDL_BUCKET_BYTES", "4096")
    assert reduction_options.requested(None, True, None) == reduction_options.ReductionOptions(
        4096, True, "bfloat16"
    )
    assert reduction_options.requested(1, False, "float32") == reduction_options.ReductionOptions(1)


def test_wrong_options_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"`wire_dtype` must be one of .*bfloat16.*'half'"):
        reduction_options.requested(None, False, "half")
    with pytest.raises(ValueError, match="sparse_as_dense=1"):
        reduction_options.requested(None, 1, None)
    monkeypatch.setenv("EASYDDL_WIRE_DTYPE", "fp16")
    with pytest.raises(ValueError, match=r"EASYDDL_WIRE_DTYPE must be one of .*'fp16'"):
        reduction_options.requested(None, False, None)
