"""Run under mpirun by test_wire.py: sums that hosts send each other in 16 bits, against NumPy.

Its arguments are the dtype, and the algorithm between hosts if NumPy is to compute what it does.
"""

import without_keras  # noqa: F401  (first)

# isort: split
import functools
import math
import os
import sys

import ml_dtypes  # noqa: F401  (NumPy learns of bfloat16)
import numpy as np
from ranks import assert_equal, assert_same_on_all, bits, noise, sum_sent_as

import easyddl as ddl

COUNTS = (0, 1, 2, 3, 5, 7, 31, 127, 1009, 10_007)  # in one chunk
HOSTS = os.environ["EASYDDL_HOSTS"].split(",")
ALIGNMENT = 32  # shards within a host begin at multiples of so many float32


DTYPE = sys.argv[1]


def rounded(array):
    with np.errstate(all="ignore"):
        return array.astype(np.dtype(DTYPE)).astype(np.float32)


def scaled(between_hosts, hosts):
    """In float16 all hosts multiply by one power of two: sums of the largest are below 2^15."""
    if DTYPE != "float16" or hosts[0].size == 0:
        return between_hosts(hosts)
    finite = np.abs([np.where(np.isfinite(host), host, 0) for host in hosts])
    _, exponent = np.frexp(max(np.max(finite), np.float32(2.0**-127)))  # is below 2^exponent
    power = min(127, 15 - math.ceil(math.log2(len(hosts))) - max(exponent, -126))
    with np.errstate(all="ignore"):
        result = between_hosts([host * np.float32(2.0**power) for host in hosts])
        return result * np.float32(2.0**-power)


def add(first, second):
    with np.errstate(all="ignore"):
        return first + second


def whole(hosts):
    return functools.reduce(add, map(rounded, hosts))


def shards(count, owners):
    """The ranges of as many owners, of which the first have one element more."""
    ends = np.cumsum([count // owners + (i < count % owners) for i in range(owners)])
    return [slice(end - count // owners - (i < count % owners), end) for i, end in enumerate(ends)]


def direct(hosts):
    result = np.empty_like(hosts[0])
    for owner, part in enumerate(shards(len(result), len(hosts))):
        others = [rounded(host[part]) for i, host in enumerate(hosts) if i != owner]
        result[part] = rounded(add(hosts[owner][part], functools.reduce(add, others)))
    return result


def ring(hosts):
    result = np.empty_like(hosts[0])
    for owner, part in enumerate(shards(len(result), len(hosts))):
        partial = hosts[(owner + 1) % len(hosts)][part]
        for hop in range(2, len(hosts) + 1):
            partial = add(hosts[(owner + hop) % len(hosts)][part], rounded(partial))
        result[part] = rounded(partial)
    return result


def halving(hosts):
    power = 1 << (len(hosts).bit_length() - 1)
    held = [host.copy() for host in hosts[:power]]
    for partner, extra in enumerate(hosts[power:]):
        held[partner] = add(held[partner], rounded(extra))
    parts = shards(len(hosts[0]), power)
    result = np.empty_like(hosts[0])
    bits_of_place = power.bit_length() - 1
    host_at = [int(f"{place:0{bits_of_place}b}"[::-1], 2) for place in range(power)]
    for owner, part in enumerate(parts):
        sums = [held[host][part] for host in host_at]  # by place
        half = power // 2
        while half:
            sums = [add(sums[place], rounded(sums[place ^ half])) for place in range(power)]
            half //= 2
        result[part] = rounded(sums[owner])
    return result


def expected(everyones, between_hosts):
    names = list(dict.fromkeys(HOSTS))
    local = HOSTS.count(names[0])
    hosts = [
        functools.reduce(add, [x for x, host in zip(everyones, HOSTS, strict=True) if host == name])
        for name in names
    ]
    each = -(-len(everyones[0]) // local)
    each = -(-each // ALIGNMENT) * ALIGNMENT
    parts = [slice(i * each, (i + 1) * each) for i in range(local)]
    parts = [[host[part] for host in hosts] for part in parts]
    return np.concatenate([scaled(between_hosts, part) for part in parts])


def special(rank, count):
    """Infinities, NaN, zeros, subnormals and numbers of all sizes."""
    random = np.random.default_rng([5, rank])
    any_bits = random.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    few = np.array([np.inf, np.nan, -0.0, 1e-40, -1e-45, 1.0, 3.4e38], np.float32)
    return np.where(random.random(count) < 0.3, random.choice(few, count), any_bits)


def check(between_hosts):
    for count in COUNTS:
        for make in (functools.partial(noise, dtype="float32"), special):
            everyones = [make(rank, count) for rank in range(ddl.size())]
            result = sum_sent_as(DTYPE, everyones[ddl.rank()])
            assert_equal(result, expected(everyones, between_hosts))
            numbers = np.where(np.isnan(result), np.float32(0), result)
            assert_same_on_all(numbers)
            assert bits(numbers) != bits(sum_sent_as("float32", everyones[ddl.rank()])) or count < 8


def check_many_chunks():
    count = 3_000_017
    everyones = [noise(rank, count, "float32") for rank in range(ddl.size())]
    result = sum_sent_as(DTYPE, everyones[ddl.rank()])
    assert_same_on_all(result)
    assert bits(result) == bits(sum_sent_as(DTYPE, everyones[ddl.rank()]))
    # Each rounding to bfloat16 is off by at most 2^-8 of a partial sum. float16 has three bits
    # more, but those of small numbers are lost, in proportion to the largest.
    magnitudes = np.sum(np.abs(everyones), axis=0)
    bound = (len(set(HOSTS)) + 1) * (2.0**-8 * magnitudes + 2.0**-36 * np.max(magnitudes))
    assert np.all(np.abs(result - np.sum(everyones, axis=0, dtype=np.float64)) <= bound)


def check_what_is_exact():
    """What is not summed in float32 is sent as it is."""
    for dtype in ("float64", "int32"):
        everyones = [noise(rank, 1009, "float32").astype(dtype) for rank in range(ddl.size())]
        mine = everyones[ddl.rank()]
        assert bits(sum_sent_as(DTYPE, mine)) == bits(sum_sent_as("float32", mine))


ALGORITHMS = {"whole": whole, "direct": direct, "ring": ring, "halving": halving}
if sys.argv[2:]:
    check(ALGORITHMS[sys.argv[2]])
check_many_chunks()
check_what_is_exact()
ddl.barrier()
print("all is well")
