import pytest
import tensorflow as tf

from easyddl.backends.tensorflow import TensorFlowBackend
from easyddl.hosts import launchers


def variables(kind):
    """The variables by which launchers tell one thing."""
    return [getattr(row, kind) for row in launchers.LAUNCHERS if getattr(row, kind)]


BACKEND = TensorFlowBackend()


@pytest.fixture
def gpus(monkeypatch):
    """Stands in for tf.config on a host with three GPUs, and notes what is asked of it."""
    asked = {}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0", "gpu1", "gpu2"])
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda device, kind: asked.update(visible=(device, kind))
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "set_memory_growth",
        lambda device, on: asked.update(growth=(device, on)),
    )
    return asked


@pytest.mark.parametrize(("local_rank", "mine"), [(0, "gpu0"), (2, "gpu2"), (4, "gpu1")])
def test_a_gpu_is_pinned_by_local_rank(monkeypatch, gpus, local_rank, mine):
    monkeypatch.setenv("PMI_SIZE", "5")
    monkeypatch.setenv("MPI_LOCALRANKID", str(local_rank))
    BACKEND.configure()
    assert gpus == {"visible": (mine, "GPU"), "growth": (mine, True)}


def test_without_a_launcher_gpus_are_left_alone(monkeypatch, gpus):
    for name in variables("size"):
        monkeypatch.delenv(name, raising=False)
    BACKEND.configure()
    assert gpus == {}


def test_a_gpu_that_only_mpi_can_tell(monkeypatch, gpus):
    for name in variables("local_rank"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "5")
    BACKEND.configure()
    assert gpus == {}
    BACKEND.pin_gpu(4)
    assert gpus == {"visible": ("gpu1", "GPU"), "growth": ("gpu1", True)}


def test_what_the_user_set_stays(monkeypatch):
    asked = []
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 7)
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 3)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", asked.append)
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", asked.append)
    BACKEND.share_cores(2)
    assert asked == []


@pytest.fixture
def threads(monkeypatch):
    """TensorFlow's numbers of threads, of which none is set."""
    numbers = {"intra": 0, "inter": 0}
    monkeypatch.setattr(BACKEND, "_own_threads", {})
    for kind in numbers:
        monkeypatch.delenv(f"TF_NUM_{kind.upper()}OP_THREADS", raising=False)
        name = f"{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, f"get_{name}", lambda k=kind: numbers[k])
        monkeypatch.setattr(
            tf.config.threading, f"set_{name}", lambda count, k=kind: numbers.update({k: count})
        )
    return numbers


def test_each_variable_that_the_user_set_stays(monkeypatch, threads):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "3")
    BACKEND.share_cores(4)
    assert threads == {"intra": 4, "inter": 0}
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS")
    BACKEND.share_cores(5)
    assert threads == {"intra": 4, "inter": 5}


def test_importing_after_tensorflow_has_begun_warns(monkeypatch):
    def begun(device, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0"])
    monkeypatch.setattr(tf.config, "set_visible_devices", begun)
    with pytest.warns(UserWarning, match="Import easyddl first"):
        BACKEND.configure()


def test_threads_are_set_again_when_the_ranks_know_each_other(threads):
    BACKEND.share_cores(1)
    assert threads == {"intra": 1, "inter": 2}
    BACKEND.share_cores(4)
    assert threads == {"intra": 4, "inter": 4}
    threads["intra"] = 7  # the user's
    BACKEND.share_cores(2)
    assert threads == {"intra": 7, "inter": 2}


TABLE = tf.Variable(tf.zeros((300, 2)))
CAPTURED = tf.range(200) % 60  # too large for TensorFlow to make it a constant of the graph
COUNTER = tf.Variable(0)
FIXED = tf.Variable([[0, 1], [1, 0]], trainable=False)
ANY, KNOWN_LENGTH, KNOWN, ONE = (None, None), (None, 6), (4, 6), (1, 6)


def judged(shape, *functions):
    """Whether the rows of a table are shared that a step looks up, by indices from the batch.

    Each function computes indices; `shape` is that of the batch at tracing.
    """
    found = []

    @tf.function(autograph=False)
    def train_step(x, scale):
        with tf.GradientTape() as tape:
            rows = [tf.gather(TABLE, each(x)) for each in functions]
            loss = scale * tf.add_n([tf.reduce_sum(each) for each in rows])
        found.extend(BACKEND.shared_parts(tape.gradient(loss, TABLE)))

    train_step.get_concrete_function(tf.TensorSpec(shape, tf.int32), tf.TensorSpec((), tf.float32))
    return found


def batch_itself(x):
    return x


def positions(x):
    return tf.range(tf.shape(x)[1])[None]


def counted(x):
    COUNTER.assign_add(1)
    return COUNTER.read_value() + tf.range(3)


SHARED = {
    "positions": positions,
    "of a part of the batch": lambda x: tf.range(tf.shape(tf.cast(x[:, :-1], tf.int64))[1]),
    "a list of lengths": lambda x: tf.range(tf.unstack(tf.shape(x), num=2)[1]),
    "a range": lambda x: tf.range(6),
    "a constant": lambda x: tf.constant([0, 0, 1]),
    "captured": lambda x: CAPTURED,
    "a part of what is captured": lambda x: CAPTURED[: tf.shape(x)[1]],
    "a variable": lambda x: tf.concat([tf.reshape(FIXED, [-1]), [2]], 0),
    "a computed table": lambda x: tf.abs(tf.range(5)[:, None] - tf.range(5)),
}
OF_SAMPLES = {
    "batch": batch_itself,
    "computed from it": lambda x: tf.where(x < 3, x, x + 1),
    "as many as it holds": lambda x: tf.range(tf.reduce_max(x)),
    "positions of each sample": lambda x: tf.broadcast_to(positions(x), tf.shape(x)),
    "repeated positions": lambda x: tf.tile(tf.range(6), tf.shape(x)[:1]),
    "positions before samples": lambda x: tf.broadcast_to(tf.range(6)[:, None], (6, len_of(x))),
    "a constant of each sample": lambda x: tf.fill((len_of(x),), 3),
    "one of the batch's shape": tf.ones_like,
}
IN_DOUBT = {
    "a variable that changes": counted,
    "random": lambda x: tf.random.uniform((3,), 0, 9, tf.int32),
    "a function": lambda x: tf.function(lambda: tf.range(3))(),
    "a condition": lambda x: tf.cond(x[0, 0] > 3, lambda: tf.range(3), lambda: tf.range(4)),
    "a loop": lambda x: tf.while_loop(lambda i: i[0] < 3, lambda i: [i + 1], [tf.range(3)])[0],
    "a Python function": lambda x: tf.ensure_shape(tf.py_function(range, [3], tf.int32), (3,)),
    "exchanged axes": lambda x: tf.range(tf.shape(tf.transpose(x))[1]),
}


def len_of(x):
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


@pytest.mark.parametrize("shape", [ANY, KNOWN_LENGTH, KNOWN])
@pytest.mark.parametrize("kind", SHARED)
def test_rows_that_all_samples_share(kind, shape):
    assert judged(shape, SHARED[kind]) == [True]


@pytest.mark.parametrize("shape", [ANY, KNOWN_LENGTH, KNOWN, ONE])
@pytest.mark.parametrize("kind", OF_SAMPLES)
def test_rows_of_samples(kind, shape):
    assert judged(shape, OF_SAMPLES[kind]) == [False]


@pytest.mark.parametrize("kind", IN_DOUBT)
def test_rows_of_which_the_graph_leaves_a_doubt(kind):
    assert judged(ANY, IN_DOUBT[kind]) == [False]


def test_rows_of_a_batch_whose_size_may_be_that_of_a_constant():
    def constant(x):
        return tf.constant([3] * 8 + [5] * 4)

    assert judged(KNOWN_LENGTH, constant) == judged((5, 6), constant) == [True]
    assert judged((4, 6), constant) == judged(ONE, constant) == [False]


def test_each_part_of_a_sparse_gradient_is_judged():
    found = judged(ANY, batch_itself, positions, counted, positions)
    assert sorted(found) == [False, False, True, True]


def test_an_iterator_in_the_step_brings_the_batch():
    found = []
    dataset = tf.data.Dataset.from_tensors(tf.zeros((4, 6), tf.int32)).repeat()

    @tf.function
    def train_steps(batches):
        for _ in tf.range(2):
            x = next(batches)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(TABLE, x)) + tf.reduce_sum(tf.gather(TABLE, [7, 8]))
            found.append(BACKEND.shared_parts(tape.gradient(loss, TABLE)))

    train_steps(iter(dataset))
    assert sorted(found[0]) == [False, True]


def test_a_step_that_takes_no_batch_leaves_a_doubt():
    indices = tf.range(3)

    @tf.function
    def train_step():
        return BACKEND.shared_parts(tf.IndexedSlices(tf.zeros((3, 2)), tf.identity(indices)))

    assert [bool(each) for each in train_step()] == [False]


def test_eager_steps_leave_a_doubt():
    assert BACKEND.shared_parts(tf.IndexedSlices(tf.zeros((3, 2)), tf.range(3))) == [False]
