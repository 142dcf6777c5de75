import pytest

from easyddl.machine import units


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (units.bit_rate, 1.25e9, "10 Gbit/s"),
        (units.bit_rate, 1.24999e8, "1000 Mbit/s"),
        (units.byte_rate, 12.5e9, "12.5 GB/s"),
        (units.seconds, -0.0123, "-12.3 ms"),
        (units.seconds, 0, "0 ns"),
        (units.size, 1023 << 20, "1023 MiB"),
        (units.decimal_size, 16e6, "16 MB"),
    ],
)
def test_a_number_has_four_digits_and_the_largest_unit(form, value, text):
    assert form(value) == text
