import pytest

from easyddl.reducer import bucket_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("latency", "bytes_per_second", "expected"),
    [
        (50e-6, 8e9, 8_000_000),
        (1e-6, 8e9, MIB),  # no smaller
        (1e-3, 8e9, 32 * MIB),  # no larger
        (1e-3, 125e6, 2_500_000),
    ],
)
def test_the_latency_is_a_twentieth_of_the_transfer(latency, bytes_per_second, expected):
    assert bucket_size.bucket_bytes(latency, 1 / bytes_per_second) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize("seconds_per_byte", [0.0, -1e-12])
def test_a_large_collective_that_seems_to_cost_nothing_more(seconds_per_byte):
    assert bucket_size.bucket_bytes(1e-6, seconds_per_byte) == 32 * MIB
