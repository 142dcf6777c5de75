"""Gradients on GPUs, on the stand-ins for NCCL and the CUDA driver (see tests/gpu_stand_in).

Those checks that compute nothing on a GPU also run on a real one, which all ranks may share.
"""

import os
import sys
import time
import weakref

import engine_only  # noqa: F401  (first)
import ml_dtypes
import mpi
import numpy as np
from gpu_arrays import Array, NullStream, Stream, copied_to_host, counted, take_gpu

from easyddl.runtime import world

world.init()

from mpi4py import MPI  # noqa: E402

COMM = MPI.COMM_WORLD.Dup()
RANK, SIZE = COMM.rank, COMM.size
if "--share" in sys.argv:
    # NCCL takes ranks of one GPU for ranks of several hosts.
    sys.argv.remove("--share")
    os.environ["NCCL_HOSTID"] = f"rank {RANK}"
    take_gpu(0)
else:
    take_gpu(world.local_rank())
STREAM = Stream()
CORE = world.engine().core

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-13}


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(rank, count, dtype="float32", seed=0):
    random = np.random.default_rng([seed, rank, count])
    return random.standard_normal(count).astype(numpy_dtype(dtype))


def mean_of(count, dtype="float32", seed=0, weights=None):
    """By NumPy, in float64."""
    weights = np.ones(SIZE) if weights is None else np.asarray(weights, float)
    rows = np.stack([values(rank, count, dtype, seed).astype("float64") for rank in range(SIZE)])
    return (weights[:, None] * rows).sum(0) / weights.sum()


def arrays_of(buckets, rank=RANK, seed=0):
    """What a rank has in buckets, by bucket."""
    return [[Array(values(rank, c, dtype, seed)) for c in counts] for dtype, counts in buckets]


class Model:
    """Buckets of arrays on this rank's GPU, and their exchange."""

    def __init__(self, buckets, in_place=True, stream=STREAM, wire_dtype="float32"):
        self.buckets = buckets
        sizes = [
            (dtype, [count * numpy_dtype(dtype).itemsize for count in counts])
            for dtype, counts in buckets
        ]
        group = world.engine().reducer_group
        self.engine = CORE.Reducer(group, "a model", sizes, [], wire_dtype)
        self.stream = stream
        self.inputs = arrays_of(buckets)
        self.outputs = self.inputs
        if not in_place:
            self.outputs = arrays_of(buckets, rank=99)

    def put(self, seed):
        for (dtype, counts), arrays in zip(self.buckets, self.inputs, strict=True):
            for count, array in zip(counts, arrays, strict=True):
                array.put(values(RANK, count, dtype, seed))

    def queue(self, bucket, sources, microseconds):
        """Has a bucket made on the stream: copies of other arrays, which take their time."""
        self.stream.sleep(microseconds * (RANK + 1) // SIZE)
        for array, source in zip(self.inputs[bucket], sources[bucket], strict=True):
            array.copy_from(source, self.stream)

    def pieces(self, bucket):
        pairs = zip(self.inputs[bucket], self.outputs[bucket], strict=True)
        return [(a.address, b.address, a.nbytes) for a, b in pairs]

    def submit(self, bucket, weight=1, gpu_weight=None, stream=None):
        self.hand_in(bucket, self.pieces(bucket), weight, gpu_weight, stream or self.stream)

    def submit_all(self, weight=1, gpu_weight=None):
        """In one request."""
        pieces = [piece for bucket in range(len(self.buckets)) for piece in self.pieces(bucket)]
        self.hand_in(0, pieces, weight, gpu_weight, self.stream)

    def hand_in(self, first, pieces, weight, gpu_weight, stream, keep=None):
        address = 0 if gpu_weight is None else gpu_weight.address
        kept = keep or gpu_weight
        self.engine.submit_on_gpu(first, pieces, weight, address, stream.number, kept)

    def results(self):
        self.stream.synchronize()
        return [[array.get() for array in arrays] for arrays in self.outputs]

    def assert_means(self, seed=0, weights=None, tolerance=None):
        for (dtype, counts), arrays in zip(self.buckets, self.results(), strict=True):
            for count, array in zip(counts, arrays, strict=True):
                want = mean_of(count, dtype, seed, weights)
                assert_close(array, want, tolerance or TOLERANCE[dtype])

    def close(self):
        self.engine.close()
        COMM.Barrier()  # nobody reads them any more
        for array in {id(a): a for row in self.inputs + self.outputs for a in row}.values():
            array.free()


def assert_close(array, want, tolerance=TOLERANCE["float32"]):
    np.testing.assert_allclose(array.astype("float64"), want, rtol=tolerance, atol=4 * tolerance)
    everyones = COMM.allgather(array.tobytes())
    assert all(theirs == everyones[0] for theirs in everyones), "the ranks' bits differ"


def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def check_floats_of_all_sizes():
    for dtype in TOLERANCE:
        model = Model([(dtype, [1, 7]), (dtype, [0, 1009, 3]), (dtype, [13])], in_place=False)
        for seed in range(3):
            model.put(seed)
            for bucket in range(3):
                model.submit(bucket)
            model.assert_means(seed)
        model.close()


def check_dtypes_side_by_side():
    model = Model([("float32", [100]), ("bfloat16", [31, 2]), ("float64", [17])])
    for seed in range(3):
        model.put(seed)
        model.submit_all()
        model.assert_means(seed)
    model.close()


def check_large_buckets():
    # Longer than what crosses the hosts at a time, and than what is copied ahead.
    for dtype, counts in (("float32", [2_700_001, 5]), ("float16", [1_300_003])):
        model = Model([(dtype, counts)])
        model.submit(0)
        model.assert_means()
        model.close()


def check_the_exchange_waits_for_what_was_queued_before():
    model = Model([("float32", [1001]), ("float32", [77])])
    made = arrays_of(model.buckets, seed=5)
    for _ in range(3):
        model.put(seed=9)  # what must not be read
        for bucket in range(2):
            model.queue(bucket, made, 20_000)
            model.submit(bucket)
        model.assert_means(seed=5)
    model.close()


def check_what_is_queued_next_waits_for_the_exchange():
    model = Model([("float32", [501]), ("float32", [9])], in_place=False)
    for seed in range(5):
        model.put(seed)
        model.submit_all()
        for arrays in model.outputs:
            for array in arrays:
                array.scale(3.0, model.stream)
        for (_, counts), arrays in zip(model.buckets, model.results(), strict=True):
            for count, array in zip(counts, arrays, strict=True):
                assert_close(array, 3 * mean_of(count, seed=seed))
    model.close()


def check_buckets_that_leave_on_a_stream_beside():
    """As from a backward pass, which goes on with the next gradient."""
    model = Model([("float32", [1001]), ("float32", [77]), ("float32", [3])])
    made = arrays_of(model.buckets, seed=5)
    copies = arrays_of(model.buckets, seed=9)
    beside = Stream()
    for _ in range(3):
        model.put(seed=9)  # what must not be read
        for bucket in range(3):
            model.queue(bucket, made, 5_000)
            beside.wait_for(model.stream)
            model.submit(bucket, stream=beside)
        model.stream.wait_for(beside)
        for bucket in range(3):
            for copy, array in zip(copies[bucket], model.inputs[bucket], strict=True):
                copy.copy_from(array, model.stream)
        model.stream.synchronize()
        for (_, counts), arrays in zip(model.buckets, copies, strict=True):
            assert_close(arrays[0].get(), mean_of(counts[0], seed=5))
    model.close()


def check_what_is_handed_in_lives_until_it_is_done():
    class Memory:
        pass

    model = Model([("float32", [1001])])
    for _ in range(3):
        memory = Memory()
        is_alive = weakref.ref(memory)
        model.stream.sleep(20_000)
        model.hand_in(0, model.pieces(0), 1, None, model.stream, memory)
        del memory
        # Where hosts have a part, all may be done when it has been submitted.
        assert is_alive() or os.environ.get("EASYDDL_GPU") != "nccl"
        model.results()
        limit = time.monotonic() + 10
        while is_alive():  # though nothing else is submitted
            assert time.monotonic() < limit
            time.sleep(0.01)
    # For how long streams have stood still the host does not know.
    assert model.engine.waited is None
    model.close()


def check_steps_are_queued_ahead():
    model = Model([("float32", [101]), ("float32", [3])])
    for _ in range(30):
        for bucket in range(2):
            model.submit(bucket)
            for array in model.inputs[bucket]:
                array.scale(1.25, model.stream)
    factor = 1.25**30
    for (_, counts), arrays in zip(model.buckets, model.results(), strict=True):
        for count, array in zip(counts, arrays, strict=True):
            np.testing.assert_allclose(array, factor * mean_of(count), rtol=1e-4, atol=1e-3)
    model.close()


def check_weights():
    model = Model([("float32", [33]), ("float64", [5])])
    on_gpu = Array(np.zeros(1, np.float32))
    for seed in range(6):
        weights = [1 + (rank * 7 + seed * 3) % 5 for rank in range(SIZE)]
        model.put(seed)
        if seed % 2:
            model.submit_all(weight=weights[RANK])
        else:
            # The weight too is there only when the stream has come to it.
            other = Array(np.array([weights[RANK]], np.float32))
            model.stream.sleep(5000)
            on_gpu.copy_from(other, model.stream)
            model.submit_all(weight=1000, gpu_weight=on_gpu)
        model.assert_means(seed, weights)
    model.close()


def check_plain_gradients_are_averaged_as_they_are():
    model = Model([("float32", [33])])
    for seed in range(2):
        model.put(seed)
        model.submit(0, weight=-1)
        model.assert_means(seed)
    model.close()


def check_ranks_that_have_joined_take_part_with_zeros():
    # The last rank never has a batch at all.
    model = Model([("float32", [21]), ("float16", [40]), ("float32", [3])])
    steps = [2 * (SIZE - 1 - rank) for rank in range(SIZE)]
    for step in range(steps[RANK]):
        model.put(step)
        for bucket in range(3):
            model.submit(bucket, weight=1 + RANK)
        weights = [(1 + r) * (steps[r] > step) for r in range(SIZE)]
        for (dtype, counts), arrays in zip(model.buckets, model.results(), strict=True):
            want = mean_of(counts[0], dtype, step, weights)
            tolerance = 5 * TOLERANCE[dtype]
            np.testing.assert_allclose(arrays[0].astype(float), want, tolerance, tolerance)
    model.engine.join()
    model.engine.wait_for_all()
    missed, uneven, _ = model.engine.join_state
    assert missed == steps[0] - steps[RANK]
    assert uneven == (SIZE > 1)
    # And all go on.
    model.engine.reset_join_state()
    model.put(3)
    for bucket in range(3):
        model.submit(bucket)
    model.assert_means(3)
    model.close()


def check_ranks_that_have_joined_several_exchanges():
    """Their threads keep the order in which the others take steps, which have one communicator."""
    models = [Model([("float32", [101]), ("float32", [5])]) for _ in range(3)]
    for _ in range(2):
        for step in range(12 if RANK == 0 else RANK % 3):
            for model in models[step % 3 :] + models[: step % 3]:
                model.put(step)
                model.submit_all(weight=2)
        for model in models:
            model.engine.join()
        for model in models:
            model.engine.wait_for_all()
        for model in models:
            model.engine.reset_join_state()
    STREAM.synchronize()
    for model in models:
        model.put(7)
        model.submit_all()
        model.assert_means(7)
        model.close()


def check_steps_of_two_exchanges_are_not_mixed():
    first, second = (Model([("float32", [5]), ("float32", [7])]) for _ in range(2))
    for model in (first, second):
        model.submit_all()
    first.submit(0)
    text = error_of(lambda: second.submit(0))
    assert "A step of a model begins while a step of a model is unfinished" in text
    first.submit(1)
    first.results()
    first.close()
    text = error_of(lambda: second.submit(0))
    assert "is unfinished" in text  # it has failed
    second.close()
    check_close_and_open_again()


def check_an_exchange_that_ends_in_the_middle_of_a_step():
    model = Model([("float32", [5]), ("float32", [7])])
    model.submit_all()
    model.submit(0)
    model.engine.close()
    check_close_and_open_again()


def check_a_framework_on_the_null_stream():
    model = Model([("float32", [1001]), ("float32", [77])], stream=NullStream())
    made = arrays_of(model.buckets, seed=5)
    blocking = Stream(blocks=True)
    for _ in range(3):
        model.put(seed=9)  # what must not be read
        for bucket in range(2):
            model.queue(bucket, made, 5_000)
            model.submit(bucket)
            blocking.sleep(1000)  # waits for the NULL stream, and that for it
        model.assert_means(seed=5)
    model.close()


def check_a_step_that_is_captured_is_refused():
    model = Model([("float32", [5])])
    model.submit(0)
    model.results()
    stream = Stream()
    with stream.capture():
        text = error_of(lambda: model.submit(0, stream=stream))
    assert "The step is being captured in a CUDA graph" in text
    for step in range(3):
        model.put(step)
        STREAM.sleep(20_000)
        model.submit(0)
        # What the engine's threads ask of the driver does not break it.
        with stream.capture():
            time.sleep(0.05)
        model.assert_means(step)
    model.close()


def check_one_rank_asks_all_to_stop():
    model = Model([("float32", [4])])
    if RANK == SIZE - 1:
        model.engine.ask_to_stop(True)
    for _ in range(2):
        model.submit(0)
    model.results()
    assert model.engine.join_state[2]
    model.close()


def check_two_exchanges_at_once():
    models = [Model([("float32", [1001]), ("float32", [5])], stream=Stream()) for _ in range(2)]
    for seed in range(8):
        # In one order on all ranks, whichever that is.
        for model in models if seed % 2 else models[::-1]:
            model.put(seed if model is models[0] else seed + 100)
            model.submit_all() if seed else [model.submit(0), model.submit(1)]
        models[0].assert_means(seed)
        models[1].assert_means(seed + 100)
    for model in models:
        model.close()


def check_many_exchanges_share_what_they_need():
    streams, events = [], []
    models = []
    for _ in range(6):
        models.append(Model([("float32", [1001]), ("float32", [5])]))
        for seed in range(3):
            models[-1].put(seed)
            models[-1].submit_all()
            models[-1].assert_means(seed)
        streams.append(counted("Streams"))
        events.append(counted("Events"))
    assert len(set(streams)) == 1, streams
    assert events[-1] - events[0] < 8, events
    for model in models:
        model.close()


def check_exchanges_on_hosts_go_on_beside():
    model = Model([("float32", [1001])])
    for seed in range(5):
        model.put(seed)
        model.submit(0)
        assert world.engine().communicator.gather_values(
            RANK, world.fingerprint("who is there")
        ) == list(range(SIZE))
        model.assert_means(seed)
    model.close()


def check_close_and_open_again():
    for seed in range(5):
        model = Model([("float32", [3 + seed])])
        if seed != 2:  # one that is not used at all
            model.put(seed)
            model.submit(0)
            model.assert_means(seed)
        model.close()


def check_many_steps():
    model = Model([("float32", [257]), ("float32", [31])])
    for step in range(200):
        model.put(step % 7)
        model.submit(0)
        model.submit(1)
        if step % 20 == 0:
            model.assert_means(step % 7)
        model.stream.synchronize()
    model.close()


def check_the_same_bits_in_every_run_of_a_way():
    model = Model([("float32", [5003])])
    seen = set()
    for _ in range(5):
        model.put(1)
        model.submit(0)
        seen.add(model.results()[0][0].tobytes())
    assert len(seen) == 1
    model.close()


def check_how_much_is_copied_to_the_host():
    hosts = os.environ["EASYDDL_HOSTS"].split(",")
    names = list(dict.fromkeys(hosts))
    in_order = os.environ.get("EASYDDL_RACKS") or ",".join("x" for _ in names)
    racks = dict(zip(names, in_order.split(","), strict=True))
    if order := os.environ.get("EASYDDL_HOST_ORDER"):
        racks = {names[int(host)]: racks[names[int(host)]] for host in order.split(",")}
    on_host = [hosts.count(host) for host in hosts]
    count = 840 * 64
    share = {"nccl": 0, "host": 1}.get(os.environ["EASYDDL_GPU"])
    if os.environ["EASYDDL_GPU"] == "hierarchical":
        is_carrier = hosts[:RANK].count(hosts[RANK]) < min(on_host)
        share = is_carrier / min(on_host)
        if os.environ.get("EASYDDL_CUDA_AWARE_MPI") == "1":
            # MPI takes what other hosts of the rack sum up: as many do so as in the smallest rack.
            members = [host for host in racks if racks[host] == racks[hosts[RANK]]]
            owners = min(list(racks.values()).count(rack) for rack in racks.values())
            share *= (members.index(hosts[RANK]) < owners) / owners
    model = Model([("float32", [count])])
    for seed in range(3):
        before = copied_to_host()
        model.put(seed)
        model.submit(0)
        model.assert_means(seed)
        copied = copied_to_host() - before
        if seed > 0 and share is not None:  # the first step is rehearsed
            assert copied == 4 * count * share, (copied / (4 * count), share)
    model.close()


def check_bfloat16_between_hosts():
    between_hosts = world.num_nodes() > 1
    model = Model([("float32", [1, 300_007]), ("float64", [13])], wire_dtype="bfloat16")
    if between_hosts and os.environ.get("EASYDDL_GPU") == "nccl":
        assert "leave out wire_dtype" in error_of(lambda: model.submit_all())
        model.close()
        return
    weights = [1 + rank for rank in range(SIZE)]
    for seed in range(2):
        model.put(seed)
        model.submit_all(weight=weights[RANK])
        model.assert_means(seed, weights, 1e-2 if between_hosts else 2e-6)
    [_, long], [double] = model.results()
    error = np.abs(long - mean_of(300_007, "float32", 1, weights))
    assert (np.max(error) > 1e-3) == between_hosts
    assert_close(double, mean_of(13, "float64", 1, weights), TOLERANCE["float64"])
    model.close()


def check_padding_does_not_scale_float16_between_hosts():
    if world.num_nodes() > 1 and os.environ.get("EASYDDL_GPU") == "nccl":
        return  # is refused, as above
    model = Model([("float32", [101]), ("float32", [77])], wire_dtype="float16")
    model.inputs[0][0].put(np.full(101, 1e30))
    model.submit_all()
    assert_close(model.results()[1][0], mean_of(77), TOLERANCE["float16"])
    model.close()


def check_what_is_refused():
    model = Model([("float32", [4])])
    host = np.zeros(4, np.float32)
    wrong = [(host.ctypes.data, host.ctypes.data, 16)]
    text = error_of(lambda: model.hand_in(0, wrong, 1, None, STREAM))
    assert "was submitted as an array in GPU memory, but is not" in text, text
    text = error_of(lambda: model.hand_in(3, model.pieces(0), 1, None, STREAM))
    assert "There is no bucket 3" in text
    model.submit(0)  # nothing has gone wrong
    model.assert_means()
    two = Model([("float32", [4]), ("float32", [5])])
    text = error_of(lambda: two.submit(1))
    assert "Bucket 1 of a model was submitted, but bucket 0 was expected" in text
    two.close()
    pieces = model.pieces(0)
    model.close()
    text = error_of(lambda: model.hand_in(0, pieces, 1, None, STREAM))
    assert "for a fit that has ended" in text


mpi.run_checks(globals())
