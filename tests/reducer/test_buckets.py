import pytest

from easyddl.reducer import buckets


@pytest.mark.parametrize(
    ("sizes", "bucket_bytes", "expected"),
    [
        ([], 10, []),
        ([0], 10, [[0]]),
        ([4, 4, 4], 1, [[2], [1], [0]]),
        ([4, 4, 4], 8, [[2, 1], [0]]),
        ([4, 4, 4], 9, [[2, 1, 0]]),
        ([4, 100, 4, 4], 8, [[3, 2], [1], [0]]),
        ([100, 0, 3], 50, [[2, 1, 0]]),
    ],
)
def test_the_last_gradient_travels_first(sizes, bucket_bytes, expected):
    assert buckets.plan(sizes, ["float32"] * len(sizes), bucket_bytes) == expected


def test_a_bucket_holds_one_dtype():
    dtypes = ["float32", "float16", "float32", "float16", "float32"]
    assert buckets.plan([4, 2, 4, 2, 4], dtypes, 8) == [[4, 2], [3, 1], [0]]


def test_every_gradient_travels_once():
    sizes = [(i * 7919) % 1000 for i in range(97)]
    dtypes = ["float32" if i % 3 else "float16" for i in range(97)]
    for bucket_bytes in (1, 100, 2500, 10**9):
        plan = buckets.plan(sizes, dtypes, bucket_bytes)
        assert sorted(i for bucket in plan for i in bucket) == list(range(97))
        assert all(len({dtypes[i] for i in bucket}) == 1 for bucket in plan)
        assert all(bucket == sorted(bucket, reverse=True) for bucket in plan)
