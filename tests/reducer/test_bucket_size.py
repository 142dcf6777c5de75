import types

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


@pytest.mark.parametrize(
    ("gains", "hosts", "is_one_bucket"),
    [([False, False], 1, True), ([False, True], 1, False), ([False, False], 2, False)],
)
def test_a_rank_with_one_core_on_the_only_host_does_not_overlap(
    gains, hosts, is_one_bucket, monkeypatch
):
    backend = types.SimpleNamespace(gains_by_overlap=lambda cores: gains[0])
    monkeypatch.setattr(bucket_size.backends, "require", lambda: backend)
    monkeypatch.setattr(bucket_size.world, "num_nodes", lambda: hosts)
    monkeypatch.setattr(bucket_size.arrays, "allreduce", lambda *_: max(gains))
    monkeypatch.setattr(bucket_size, "_measured", lambda: MIB)
    assert (bucket_size.of_job.__wrapped__() > 1 << 40) == is_one_bucket
