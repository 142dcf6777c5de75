"""What scripts do that is not the main road: as one process does it, or with a word about it."""

import functools
import gc
import operator
import warnings
import weakref

import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails, said
from keras import ops
from mpi import run_checks
from steps import BACKEND, TAKES_SEVERAL_STEPS, fit_by_the_root, gradients_of, stateful

import easyddl as ddl
from easyddl.compat import keras_optimizer
from easyddl.runtime import notices
from easyddl.training.state import layer_state
from easyddl.training.step import compiled_step

N, STEPS, EPOCHS = 4, 3, 2
COUNT = N * SIZE * STEPS
LATE = keras.optimizers.Adam  # those below must be made with the models


def data(features=5):
    random = np.random.default_rng(1)
    x = random.standard_normal((COUNT, features)) + 0.5
    return x, np.sin(x.sum(1, keepdims=True))


def together(model, x, y, sample_weight=None, epochs=EPOCHS, callbacks=None, **settings):
    parts = [None if each is None else ddl.split_data(each) for each in (x, y, sample_weight)]
    return model.fit(
        parts[0], parts[1], sample_weight=parts[2], batch_size=N, epochs=epochs, shuffle=False,
        verbose=0, callbacks=callbacks or both(**settings),
    )  # fmt: skip


def alone(model, x, y, sample_weight=None, epochs=EPOCHS, fit=None):
    return (fit or model.fit)(
        x, y, sample_weight=sample_weight, batch_size=N * SIZE, epochs=epochs, shuffle=False,
        verbose=0,
    )  # fmt: skip


def alone_on_the_root(model, *arguments):
    """The same, where nothing but variables and histories is asked for later."""
    return alone(model, *arguments, fit=functools.partial(fit_by_the_root, model))


def use(dtype):
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def in_float64(check):
    """A check that computes in float64, where its backend does."""

    def wrapped():
        use("float64")
        try:
            check()
        finally:
            use("float32")

    return wrapped


def assert_alike(model, expected, rtol=1e-6):
    assert_replicas_are_equal(model)
    for weight, want in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=rtol, atol=rtol)


def assert_trains_alike(make, x, y, sample_weight=None, rtol=1e-6, **settings):
    """A training on all ranks is that of one process: weights, and the history."""

    def seeded():
        keras.utils.set_random_seed(2)  # also for layers that are made before the model
        return make()

    model, expected = seeded(), seeded()
    history = together(model, x, y, sample_weight, **settings).history
    wanted = alone_on_the_root(expected, x, y, sample_weight).history
    assert_alike(model, expected, rtol)
    assert history.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)


def dense(*layers, optimizer="sgd", loss="mse", **arguments):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.layers.Input((5,)),
            *layers,
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, loss, **arguments)
    return model


class Holder:
    """No layer, and nothing that Keras tracks."""


class Mine(keras.optimizers.SGD):
    """Has an `apply` of its own."""

    def apply(self, grads, trainable_variables=None):
        return super().apply([grad * 0.5 for grad in grads], trainable_variables)


GLOBAL = {}  # by model


class Parts(keras.Model):
    """As many layers as optimizers, which stand in all kinds of places."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1) for _ in range(6)]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)

    def call(self, x):
        return sum(part(x) for part in self.parts)

    def compile(self):
        super().compile(None if BACKEND != "jax" else "sgd", "mse")
        k = keras.optimizers
        self.others = [k.Adam(0.01), k.SGD(0.1, momentum=0.9)]
        self.by_name = {"third": k.RMSprop(0.01)}
        self.holder = Holder()
        self.holder.one = k.SGD(0.1, clipnorm=0.5)
        if BACKEND != "jax":  # where the step of these tests cannot hold it
            self.holder.one = k.LossScaleOptimizer(k.SGD(0.1), initial_scale=4.0)
        self.pair = (Mine(0.1),)
        GLOBAL[id(self)] = k.Adagrad(0.1)

    def optimizers(self):
        found = [
            *self.others[:2],
            self.by_name["third"],
            self.holder.one,
            self.pair[0],
            GLOBAL[id(self)],
        ]
        if BACKEND == "jax":  # where the step of these tests assigns what it knows of
            self.others = found
        return found

    @stateful
    def train_step(self, data):
        x, y = data
        for part, optimizer in zip(self.parts, self.optimizers(), strict=True):
            scale = optimizer.scale_loss
            loss, found = gradients_of(
                lambda part=part, scale=scale: scale(self.compute_loss(x, y, part(x))),
                part.trainable_variables,
            )
            optimizer.apply(found, part.trainable_variables)
        return {"loss": loss}


@in_float64
def check_optimizers_that_no_attribute_names():
    x, y = data()

    def make():
        keras.utils.set_random_seed(4)
        model = Parts()
        model.build((None, 5))
        model.compile()
        model.run_eagerly = BACKEND == "jax"  # whose state is that of one optimizer
        if BACKEND == "jax" or model.jit_compile:
            for part, optimizer in zip(model.parts, model.optimizers(), strict=True):
                optimizer.build(part.trainable_variables)
        return model

    model, expected = make(), make()
    together(model, x, y)
    alone(expected, x, y)
    assert_alike(model, expected)
    # What is trained later, without easyddl's callbacks, waits for nobody.
    if RANK == 0:
        alone(model, x, y, epochs=1)


@in_float64
def check_a_model_without_call():
    if BACKEND != "tensorflow":
        return  # Keras cannot train one that is not built there

    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            layers = keras.layers
            self.maker = keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(5)])
            self.judge = keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(1)])

        def compile(self):
            super().compile()
            self.both = {"maker": LATE(0.01), "judge": LATE(0.02)}

        def train_step(self, data):
            x, noise = data
            logs = {}
            for name in ("judge", "maker"):
                part = getattr(self, name)
                sign = 1.0 if name == "judge" else -1.0
                loss, _ = gradients_of(lambda s=sign: s * self.difference(x, noise), [])
                _, found = self.found(part, x, noise, sign)
                self.both[name].apply_gradients(zip(found, part.trainable_weights, strict=True))
                logs[name] = loss
            return logs

        def found(self, part, x, noise, sign):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = sign * self.difference(x, noise)
            return loss, tape.gradient(loss, part.trainable_weights)

        def difference(self, x, noise):
            fake = self.judge(self.maker(noise))
            return ops.mean(ops.square(self.judge(x) - 1)) + ops.mean(ops.square(fake))

    def make():
        keras.utils.set_random_seed(5)
        model = GAN()
        model.compile()
        if model.jit_compile:
            model.jit_compile = False  # XLA lets no step make variables
        return model

    x, _ = data()
    noise = np.random.default_rng(2).standard_normal((COUNT, 3))
    model, expected = make(), make()
    for _ in range(2):  # the second takes the step of the first
        together(model, x, noise)
        alone(expected, x, noise)
    assert_alike(model, expected)


@in_float64
def check_a_step_that_takes_a_batch_whole():
    """As keras.io's siamese network does: `call` could not build the model by the first input."""
    if BACKEND != "tensorflow":
        return  # Keras cannot build it there

    class Siamese(keras.Model):
        def __init__(self):
            super().__init__()
            self.embed = keras.layers.Dense(3)

        def call(self, inputs):
            first, second, third = (self.embed(each) for each in inputs)
            near = ops.sum(ops.square(first - second), -1)
            return near, ops.sum(ops.square(first - third), -1)

        @stateful
        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                near, far = self(data)
                loss = ops.mean(ops.maximum(near - far + 0.5, 0.0))
            found = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(found, self.trainable_weights, strict=True))
            return {"loss": loss}

    def dataset(rank, size):
        import tensorflow as tf

        parts = tuple(data()[0][rank::size] * factor for factor in (1.0, 1.1, -0.3))
        return tf.data.Dataset.from_tensor_slices(parts).batch(COUNT // size // STEPS)

    def make(eagerly=False):
        keras.utils.set_random_seed(6)
        model = Siamese()
        model.compile(LATE(0.01), run_eagerly=eagerly)
        if model.jit_compile:
            model.jit_compile = False
        return model

    for eagerly in (False, True):
        model, expected = make(eagerly), make(eagerly)
        model.fit(dataset(RANK, SIZE), epochs=EPOCHS, shuffle=False, verbose=0, callbacks=both())
        expected.fit(dataset(0, 1), epochs=EPOCHS, shuffle=False, verbose=0)
        assert_alike(model, expected)


class Keeps(keras.layers.Layer):
    """Keeps sums and means of its batches, which do not change what it returns."""

    def __init__(self):
        super().__init__()
        own = {"trainable": False, "initializer": "zeros"}
        self.total = self.add_weight((), name="total", aggregation="sum", **own)
        self.count = self.add_weight((), name="count", aggregation="sum", dtype="int32", **own)
        self.mean = self.add_weight((5,), name="mean", aggregation="mean", **own)
        self.seen = self.add_weight((), name="seen", **own)

    def call(self, x, training=False):
        if training:
            self.total.assign(self.total + ops.sum(x))
            self.count.assign(self.count + ops.shape(x)[0])
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            self.seen.assign(self.seen + ops.sum(x))
        return x


def check_what_layers_keep_is_merged():
    x, y = data()
    x, y = x.astype("float32"), y.astype("float32")
    try:
        ddl.register_layer(Keeps, merge={"seen": "sum"})
        model, expected = dense(Keeps()), dense(Keeps())
        for _ in range(2):
            together(model, x, y)
            alone(expected, x, y)
        assert_alike(model, expected, rtol=1e-5)
        # A rank that has fewer batches adds less.
        model = dense(Keeps())
        mine = x[RANK::SIZE][: N * (STEPS if RANK == 0 else STEPS - 1)]
        model.fit(mine, mine[:, :1], batch_size=N, verbose=0, callbacks=both(), shuffle=False)
        total = COMM.allreduce(float(mine.astype("float64").sum()))
        np.testing.assert_allclose(model.layers[0].total.numpy(), total, rtol=1e-5)
        assert int(model.layers[0].count.numpy()) == COMM.allreduce(len(mine))
        assert_replicas_are_equal(model)
    finally:
        del layer_state._merges[Keeps]


def check_what_cannot_be_merged_becomes_the_roots():
    x, y = data()
    model = dense(Keeps())
    text = said(lambda: together(model, x, y, epochs=1))
    assert_replicas_are_equal(model)
    wanted = x[0::SIZE].sum()
    np.testing.assert_allclose(model.layers[0].seen.numpy(), wanted, rtol=1e-4)
    if RANK == 0 and SIZE > 1:
        assert text.count("'keeps") == 1 and "/seen'" in text and "register_layer" in text, text
    else:
        assert "seen" not in text, text
    error = fails(lambda: ddl.register_layer(Keeps, merge="median"))
    assert isinstance(error, ValueError) and "'median'" in str(error)
    error = fails(lambda: ddl.register_layer(Keeps(), merge="sum"))
    assert isinstance(error, TypeError) and "layer_class" in str(error)


class Contrast(keras.Model):
    """Finds each sample's other half among those of a batch, of this rank or of all ranks."""

    def __init__(self, is_shared):
        super().__init__()
        self.encode, self.is_shared = keras.layers.Dense(3), is_shared

    def call(self, x):
        return self.encode(x[:, :2]), self.encode(x[:, 2:4])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        one, other = [self.shared(each) for each in y_pred] if self.is_shared else y_pred
        similar = ops.matmul(one, ops.transpose(other))
        partners = ops.arange(ops.shape(similar)[0])
        losses = keras.losses.sparse_categorical_crossentropy(partners, similar, from_logits=True)
        return ops.mean(losses)

    def shared(self, x):
        before, after = N * RANK, N * (SIZE - 1 - RANK)
        mine = ops.pad(ops.reshape(x, (N, 3)), ((before, after), (0, 0)))
        return ddl.allreduce(mine, "sum")


def check_a_loss_that_compares_the_samples_of_all_ranks():
    x, _ = data()
    x = x.astype("float32")

    def make(is_shared):
        keras.utils.set_random_seed(3)
        model = Contrast(is_shared)
        model.compile(keras.optimizers.SGD(0.1))
        return model

    model, expected = make(True), make(False)
    together(model, x, None)
    alone(expected, x, None)
    assert_alike(model, expected, rtol=1e-4)


class Normalizes(keras.Sequential):
    """Normalizes the gradients itself, of this rank's batch or of all ranks'."""

    is_shared = False

    @stateful
    def train_step(self, data):
        x, y = data
        variables = self.trainable_variables
        loss, gradients = gradients_of(lambda: self.compute_loss(x, y, self(x)), variables)
        if self.is_shared:
            gradients = [ddl.allreduce(each) for each in gradients]
        gradients = [each / ops.sqrt(ops.sum(ops.square(each))) for each in gradients]
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


def check_gradients_that_a_step_normalizes_itself():
    x, y = data()
    x, y = x.astype("float32"), y.astype("float32")

    def make(is_shared):
        keras.utils.set_random_seed(3)
        model = Normalizes([keras.layers.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.is_shared = is_shared
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    model, expected = make(True), make(False)
    together(model, x, y)
    alone(expected, x, y)
    assert_alike(model, expected, rtol=1e-4)


def clipped(grads):
    norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in grads))
    return [each * (0.05 / ops.maximum(norm, 0.05)) for each in grads]


class ClippedBySelf(keras.optimizers.SGD):
    """Clips the whole gradient to a norm before Keras accumulates it."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(clipped(grads), trainable_variables)


class ClippedInPairs(keras.optimizers.SGD):
    """The same, in the method that a step of TensorFlow calls."""

    def apply_gradients(self, grads_and_vars):
        grads, variables = zip(*grads_and_vars, strict=True)
        return super().apply_gradients(list(zip(clipped(grads), variables, strict=True)))


def clipped_in(name):
    """Returns a class that does the same in a private method of Keras."""

    def method(self, grads, *others):
        return getattr(super(cls, self), name)(clipped(grads), *others)

    cls = type("Clipped", (keras.optimizers.SGD,), {name: method})
    return cls


@in_float64
def check_an_optimizer_that_transforms_what_it_accumulates():
    x, y = data()

    def clipped_by_instance(*args, **kwargs):
        optimizer = keras.optimizers.SGD(*args, **kwargs)
        apply = optimizer.apply
        named = functools.wraps(apply)  # as a decorator of the user's does
        optimizer.apply = named(lambda grads, *variables: apply(clipped(grads), *variables))
        return optimizer

    own = (ClippedBySelf, ClippedInPairs, clipped_by_instance)
    for kind in (*own, *map(clipped_in, keras_optimizer.ACCUMULATING)):
        optimizer = functools.partial(kind, 0.5, gradient_accumulation_steps=3)
        assert_trains_alike(lambda optimizer=optimizer: dense(optimizer=optimizer()), x, y)


def check_variables_that_keras_does_not_track():
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    class Counts(keras.layers.Layer):
        """Keeps variables of TensorFlow's own: of the layer, in a dict, and of a module."""

        def __init__(self):
            super().__init__()
            start = float(RANK)
            self.total = tf.Variable(start, name="total")
            self.more = {"seen": [tf.Variable(start, name="seen")]}
            self.module = tf.Module()
            self.module.constant = tf.Variable(tf.fill((2,), start), name="constant")

        def call(self, x, training=False):
            if training:
                for variable in (self.total, *self.more["seen"]):
                    variable.assign_add(ops.sum(ops.cast(x, "float32")))
            return x + ops.cast(self.module.constant[0], x.dtype)

    ddl.register_layer(Counts, merge={"seen": "sum"})
    try:
        x, y = data()
        layer = Counts()
        model = dense(layer)
        text = said(lambda: together(model, x, y, check_replicas=1))
    finally:
        del layer_state._merges[Counts]
    np.testing.assert_array_equal(layer.module.constant.numpy(), [0, 0])
    mine = [v.numpy().tobytes() for v in (layer.total, *layer.more["seen"])]
    assert COMM.allgather(mine) == [mine] * SIZE
    np.testing.assert_allclose(layer.total.numpy(), EPOCHS * x[0::SIZE].sum(), rtol=1e-4)
    np.testing.assert_allclose(layer.more["seen"][0].numpy(), EPOCHS * x.sum(), rtol=1e-4)
    if RANK == 0 and SIZE > 1:
        assert text.count("warning") == 1 and "/total'" in text, text


def check_state_of_a_jax_layer():
    """It consists of Keras variables."""
    if BACKEND != "jax":
        return
    from jax import numpy as jnp

    def call(state, inputs):
        return inputs, {"mean": 0.9 * state["mean"] + 0.1 * jnp.mean(inputs, axis=0)}

    def make(merge):
        class Mean(keras.layers.JaxLayer):
            pass

        ddl.register_layer(Mean, merge=merge)
        return Mean(call, state={"mean": jnp.zeros(5)})

    def wanted(x):
        mean = 0
        for batch in x.reshape(-1, N, 5):
            mean = 0.9 * mean + 0.1 * batch.mean(axis=0)
        return mean

    x, y = data()
    parts = [wanted(x[rank::SIZE]) for rank in range(SIZE)]
    for merge, want in (("mean", np.mean(parts, axis=0)), ("root", parts[0])):
        layer = make(merge)
        model = dense(layer)
        together(model, x, y, epochs=1)
        np.testing.assert_allclose(layer.state["mean"].numpy(), want, rtol=1e-4)
        assert_replicas_are_equal(model)


def check_random_numbers_of_no_layer():
    """Ranks draw different ones in a training, and the same ones after it."""
    if BACKEND == "jax":
        return  # Keras raises an error where a compiled step draws these

    drawn = []

    class Draws(keras.layers.Layer):
        def call(self, x, training=False):
            noise = keras.random.normal((2,))
            if BACKEND == "tensorflow":
                import tensorflow as tf

                noise = ops.concatenate([noise, tf.random.normal((2,))])
            return x + 0 * ops.sum(noise) if not training else x + ops.mean(noise)

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            drawn.append(float(logs["loss"]))

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Input((5,)), Draws(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones((N * STEPS, 5), "float32")
    model.fit(x, x[:, :1], batch_size=N, verbose=0, callbacks=both(Notes()))
    everyones = COMM.allgather(drawn)
    assert len({tuple(each) for each in everyones}) == SIZE, everyones
    after = np.asarray(ops.convert_to_numpy(keras.random.normal((2,)))).tolist()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        after += tf.random.normal((2,)).numpy().tolist()
    after += [keras.random.SeedGenerator().state.numpy().tolist()]  # of Python's generator
    assert all(each == after for each in COMM.allgather(after))


@in_float64
def check_layers_frozen_between_fits():
    x, y = data()
    model, expected = dense(optimizer=LATE(0.02)), dense(optimizer=LATE(0.02))
    together(model, x, y)
    alone(expected, x, y)
    for each in (model, expected):
        each.layers[0].trainable = False
    before = [np.array(weight.numpy()) for weight in model.layers[0].weights]
    problems = [outcome(together, model, x, y), outcome(alone, expected, x, y)]
    # On JAX Keras itself cannot go on: its optimizer was built for more variables.
    assert problems == [ValueError if BACKEND == "jax" else None] * 2, problems
    if BACKEND == "jax":
        return
    assert_alike(model, expected)
    # The graph of TensorFlow's step holds what was trainable when it was traced.
    pairs = zip(model.layers[0].weights, before, strict=True)
    is_trained = any(np.any(weight.numpy() != value) for weight, value in pairs)
    assert is_trained == (BACKEND == "tensorflow")
    for each in (model, expected):
        each.layers[0].trainable = True
    together(model, x, y)
    alone(expected, x, y)
    assert_alike(model, expected)
    for each in (model, expected):
        each.layers[0].trainable = False
        each.compile(LATE(0.02), "mse")
    together(model, x, y)
    alone(expected, x, y)
    assert_alike(model, expected)


def outcome(fit, *arguments):
    try:
        fit(*arguments)
    except Exception as error:
        return type(error)
    return None


def check_steps_are_compiled_once():
    traced = []

    class Counts(keras.layers.Layer):
        def call(self, x):
            traced.append(1)
            return x

    x, y = data()
    model = dense(Counts())
    together(model, x, y, epochs=1)
    first = len(traced)
    for _ in range(3):
        together(model, x, y, epochs=1)
    if BACKEND != "torch":  # which compiles nothing
        assert len(traced) == first, (first, traced)
    # Another loss, and another optimizer.
    model.compile(LATE(0.01), "mae")
    together(model, x, y, epochs=1)
    assert len(traced) > first
    traced.clear()
    # Another way of the gradients.
    together(model, x, y, epochs=1, bucket_bytes=16)
    together(model, x, y, epochs=1, bucket_bytes=32)
    assert len(traced) >= 2
    assert_replicas_are_equal(model)


def check_a_model_that_is_dropped_takes_its_step_with_it():
    x, y = data()
    model = dense(optimizer=LATE(0.01))
    together(model, x, y, epochs=1)
    left = [weakref.ref(model.optimizer), weakref.ref(compiled_step.of(model))]
    del model
    gc.collect()
    assert [each() for each in left] == [None, None]
    together(dense(), x, y, epochs=1)


class Adds(keras.layers.Layer):
    """Adds a loss that is a sum over the batch."""

    def call(self, x):
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        return x


def sum_of_squares(y, predicted):
    return ops.sum(ops.square(y - predicted))


class OwnLoss(keras.Sequential):
    """Computes its loss by itself, as a sum, by a method with Keras's older arguments."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return sum_of_squares(y, y_pred)


class PassesOn(keras.Sequential):
    """Returns what Keras's method returns."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


class Computes(keras.Sequential):
    """Computes the loss that it was compiled with by itself."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss(y, y_pred)


class Branches(keras.Sequential):
    """Has its loss computed in a branch, which is a graph of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        compute = super().compute_loss
        if BACKEND == "torch":  # whose `cond` in Keras has no gradient
            return compute(x, y, y_pred)
        return ops.cond(ops.sum(y) < 1e9, lambda: compute(x, y, y_pred), lambda: ops.sum(y_pred))


def with_own_loss():
    keras.utils.set_random_seed(2)
    model = OwnLoss([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001))
    return model


def with_added_and_own_loss():
    """A model whose own method, which has the name of Keras's, adds what its layers have added."""
    model = dense(Adds(), optimizer=keras.optimizers.SGD(0.001))

    @functools.wraps(model.compute_loss)
    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return sum_of_squares(y, y_pred) + sum(model.losses)

    model.compute_loss = compute_loss
    return model


@in_float64
def check_losses_that_are_sums():
    x, y = data()
    regular = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}

    def adds():
        return dense(Adds(), keras.layers.Dense(5, **regular))

    assert_trains_alike(adds, x, y, scalar_losses="sum")
    small = {"optimizer": keras.optimizers.SGD(0.001)}
    assert_trains_alike(
        lambda: dense(loss=sum_of_squares, **clone(small)), x, y, scalar_losses="sum"
    )
    assert_trains_alike(with_own_loss, x, y, scalar_losses="sum")
    assert_trains_alike(with_added_and_own_loss, x, y, scalar_losses="sum")

    def adds_alone():
        layer = keras.layers.Dense(1, kernel_regularizer="l2")
        model = PassesOn([keras.Input((5,)), layer, Adds()])
        model.compile(keras.optimizers.SGD(0.01))
        return model

    assert_trains_alike(adds_alone, x, y, scalar_losses="sum")
    model, whole = with_own_loss(), {"validation_data": (x, y), "validation_batch_size": len(x)}
    callbacks = both(scalar_losses="sum")
    history = model.fit(*ddl.split_data(x, y), verbose=0, callbacks=callbacks, **whole).history
    found = history["val_loss"][-1]
    kernel, bias = (variable.numpy() for variable in model.weights)
    np.testing.assert_allclose(found, np.sum((y - (x @ kernel + bias)) ** 2), rtol=1e-6)
    if BACKEND == "tensorflow":  # the others want one number
        unreduced = keras.losses.MeanSquaredError(reduction=None)
        assert_trains_alike(lambda: dense(loss=unreduced), x, y)


def clone(arguments):
    optimizer = arguments["optimizer"]
    return {"optimizer": type(optimizer).from_config(optimizer.get_config())}


def check_outputs_with_numbers_are_compiled_in_another_order_on_each_rank():
    x, y = data()

    def make():
        inputs = keras.Input((5,))
        losses = {"head_1": "mse", "head_2": "mae"}
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in losses}
        model = keras.Model(inputs, outputs)
        model.compile("sgd", losses if RANK == 0 else dict(reversed(losses.items())))
        return model

    assert_trains_alike(make, x, {"head_1": y, "head_2": 3 * y})


@in_float64
def check_losses_that_call_losses():
    x, y = data()
    inner, total = keras.losses.MeanSquaredError(), keras.losses.MeanSquaredError(reduction="sum")

    def with_a_mean(y, predicted):
        return inner(y, predicted) + ops.mean(ops.abs(y - predicted), axis=-1)

    class WithAMean(keras.losses.Loss):
        def call(self, y, predicted):
            return with_a_mean(y, predicted)

    for loss in (with_a_mean, WithAMean()):
        assert_trains_alike(functools.partial(dense, loss=loss), x, y)

    def with_a_sum():
        optimizer = keras.optimizers.SGD(0.001)
        return dense(loss=lambda y, predicted: total(y, predicted), optimizer=optimizer)

    for kind in (None, "sum"):
        text = said(lambda k=kind: assert_trains_alike(with_a_sum, x, y, scalar_losses=k))
        assert "scalar_losses" not in text, text
    if BACKEND == "tensorflow":

        def needs_values(y, predicted):
            weights = np.where(y.numpy() > 0, 2.0, 1.0)
            return ops.mean(weights * ops.square(y - predicted), axis=-1)

        eager = functools.partial(dense, loss=needs_values, run_eagerly=True)
        assert_trains_alike(eager, x, y)


@in_float64
def check_losses_of_keras_in_code_of_the_user():
    """Sums that the code divides, a `__call__` of its own, and losses of single samples."""
    x, y = data()
    inner, total, each = (keras.losses.Huber(reduction=r) for r in ("mean", "sum", None))

    def by_own_count(y, predicted):
        return total(y, predicted) / ops.cast(ops.shape(y)[0], "float64")

    def by_batch_size(y, predicted):
        return ops.sum(each(y, predicted)) / (N * SIZE)

    class OwnCall(keras.losses.Huber):
        def __call__(self, y, predicted, sample_weight=None):
            return by_batch_size(y, predicted)

    def in_a_loop(y, predicted):
        by_sample = ops.map(lambda pair: inner(pair[0][None], pair[1][None]), (y, predicted))
        return ops.mean(by_sample) + inner([1.0], [1.0])

    def of_columns(y, predicted):
        return ops.sum(ops.abs(y - predicted), axis=0) / (N * SIZE)

    def of_classes(y, predicted):  # more of them than samples
        by_class = ops.abs(y - ops.tile(predicted, (1, N + 1)))
        return ops.sum(by_class, axis=0) / (N * SIZE)

    class Lazy(keras.losses.Loss):
        weights = None

        def call(self, y, predicted):
            if self.weights is None and BACKEND == "tensorflow":  # others trace a model twice
                self.weights = ops.convert_to_tensor([0.5], "float64")
            return ops.abs(y - predicted)[:, 0] * (0.5 if self.weights is None else self.weights)

    def made(cls, loss):
        keras.utils.set_random_seed(2)
        model = cls([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", loss() if loss is Lazy else loss)
        return model

    for cls, loss, kind in (
        (keras.Sequential, by_own_count, None),
        (keras.Sequential, OwnCall(), "sum"),
        (Computes, by_batch_size, "sum"),
        (Computes, in_a_loop, None),
        (Branches, total, None),
        (keras.Sequential, of_columns, "sum"),
        (keras.Sequential, of_classes, "sum"),
        (keras.Sequential, Lazy, None),
    ):
        notices._told.clear()
        make = functools.partial(made, cls, loss)
        text = said(lambda m=make, k=kind: assert_trains_alike(m, x, y, scalar_losses=k))
        is_told = RANK == 0 and SIZE > 1 and loss is by_own_count
        assert ("a loss function returns one number" in text) == is_told, (loss, text)

    def adds_alone():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1), Adds()])
        model.compile("sgd", lambda *_: 0.0)
        return model

    assert_trains_alike(adds_alone, x, y, scalar_losses="sum")


@in_float64
def check_a_compute_loss_that_passes_weights_of_its_own():
    """Divided by their sum, as detectors of objects do, which makes a mean of a sum of Keras."""
    x, y = data()
    x[::5], weights = 0.0, np.random.default_rng(3).random(COUNT)

    class Normalizes(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            weights = ops.ones_like(y[:, 0]) / ops.cast(ops.shape(y)[0], "float64")
            return super().compute_loss(x, y, y_pred, sample_weight=weights, training=training)

    class CallsItself(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            weights = ops.ones_like(y[:, 0]) / ops.cast(ops.shape(y)[0], "float64")
            return keras.losses.MeanSquaredError(reduction="sum")(y, y_pred, sample_weight=weights)

    def make(cls):
        model = cls([keras.Input((5,)), keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum"))
        return model

    words = {Normalizes: "passes weights of its own", CallsItself: "returns one number"}
    for cls, given in ((Normalizes, None), (CallsItself, None), (PassesOn, weights)):
        notices._told.clear()
        text = said(lambda c=cls, w=given: assert_trains_alike(lambda: make(c), x, y, w))
        is_told = RANK == 0 and SIZE > 1 and cls in words
        assert text.count("warning: ") == is_told, text
        assert not is_told or words[cls] in text, text


class Pairs(keras.Sequential):
    """Its `compute_loss` has arguments of its own, and `train_step` calls it."""

    def compute_loss(self, left, right):
        return ops.mean(ops.square(left - right))

    @stateful
    def train_step(self, data):
        x, y = data
        loss, gradients = gradients_of(
            lambda: self.compute_loss(self(x, training=True), right=y), self.trainable_variables
        )
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@in_float64
def check_a_compute_loss_with_other_arguments():
    def make():
        keras.utils.set_random_seed(2)
        model = Pairs([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01))
        return model

    x, y = data()
    model, expected = make(), make()
    together(model, x, y, scalar_losses="mean")
    alone_on_the_root(expected, x, y)
    assert_alike(model, expected)


def with_mean_and_losses_of(layer, reads):
    """A model that computes a mean, and may add what its layers have added."""
    model, mean = dense(layer), keras.losses.MeanSquaredError()

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return mean(y, y_pred) + (sum(model.losses) if reads else 0.0)

    model.compute_loss = compute_loss
    return model


@in_float64
def check_losses_of_unknown_kind_are_told():
    x, y = data()
    models = {
        "add_loss": dense(Adds()),
        "loss function": dense(loss=sum_of_squares, optimizer=keras.optimizers.SGD(1e-4)),
        "own compute_loss": with_own_loss(),
        "Dice": dense(loss=keras.losses.Dice()),
    }
    if hasattr(keras.losses, "Tversky"):
        models["Tversky"] = dense(loss="tversky")
    if hasattr(keras.losses, "Circle"):
        models["Circle"] = dense(loss=keras.losses.Circle())
    for word, model in models.items():
        notices._told.clear()
        text = said(lambda m=model: together(m, x, y))
        wanted = RANK == 0 and SIZE > 1
        assert text.count("warning: ") == wanted and (word in text) == wanted, (word, text)
        compares = "compares the samples of its own batch" in text
        assert compares == (wanted and word not in ("Dice", "Tversky")), (word, text)
    regularized = keras.layers.Dense(5, kernel_regularizer="l2")
    for layer, reads in ((Adds(), True), (Adds(), False), (regularized, True)):
        notices._told.clear()
        model = with_mean_and_losses_of(layer, reads)
        text = said(lambda m=model: together(m, x, y))
        is_told = RANK == 0 and SIZE > 1 and reads and layer is not regularized
        assert text.count("warning: ") == is_told, text
        assert ("adds a loss of add_loss() to losses of Keras" in text) == is_told, text
    notices._told.clear()
    text = said(lambda: together(dense(Adds()), x, y, scalar_losses="mean"))
    text += said(lambda: together(dense(loss=keras.losses.Dice(axis=(1,))), x, y))
    assert "warning" not in text, text
    error = fails(lambda: ddl.DDLCallback(scalar_losses="none"))
    assert isinstance(error, ValueError) and "scalar_losses" in str(error)


@in_float64
def check_losses_with_weights_and_masks():
    """Weights that are zero on all samples of one rank, and masks of other lengths by rank."""
    x, y = data()
    weights = np.random.default_rng(3).random(COUNT)
    weights[SIZE - 1 :: SIZE] = 0.0
    mean = keras.losses.MeanSquaredError
    assert_trains_alike(
        lambda: dense(
            keras.layers.Dense(5, activity_regularizer="l2"),
            loss=mean(reduction="mean_with_sample_weight"),
        ),
        x, y, weights if SIZE > 1 else weights + 1,
    )  # fmt: skip

    def two():
        keras.utils.set_random_seed(8)
        words = keras.Input((6,), dtype="int32")
        each = keras.layers.Embedding(9, 3, mask_zero=True)(words)
        tokens = keras.layers.Dense(1, name="tokens")(each)
        whole = keras.layers.Dense(1, name="whole")(keras.layers.GlobalAveragePooling1D()(each))
        weighed = keras.layers.Dense(1, name="weighed")(each)
        model = keras.Model(words, {"tokens": tokens, "weighed": weighed, "whole": whole})
        by_weights = mean(reduction="mean_with_sample_weight")
        losses = {"tokens": mean(), "weighed": by_weights, "whole": by_weights}
        model.compile(keras.optimizers.SGD(0.1), losses)
        return model

    random = np.random.default_rng(4)
    words = random.integers(1, 9, (COUNT, 6))
    words[np.arange(6) >= random.integers(1, 7, (COUNT, 1))] = 0
    each = (COUNT, 6)
    targets = {"tokens": random.random((*each, 1)), "whole": random.random((COUNT, 1))}
    targets["weighed"] = random.random((*each, 1))
    sample_weight = {"tokens": np.ones(each), "weighed": random.random(each)}
    sample_weight["whole"] = weights + 0.1
    model, expected = two(), two()
    history = together(model, words, targets, sample_weight).history
    wanted = alone(expected, words, targets, sample_weight).history
    assert_alike(model, expected)
    for name, values in wanted.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)


@in_float64
def check_losses_that_drop_samples():
    """Labels are missing on all samples of one rank, and on others of one of two outputs."""
    if BACKEND == "jax":
        return  # which cannot select by values
    if BACKEND == "tensorflow":
        from tensorflow import boolean_mask as select
    else:
        select = operator.getitem

    def of_known(y, y_pred):
        known = keras.ops.isfinite(y[:, 0])
        return keras.ops.abs(select(y, known) - select(y_pred, known))

    mean = keras.losses.MeanAbsoluteError()

    def mean_of_known(y, y_pred):
        known = keras.ops.isfinite(y[:, 0])
        return mean(select(y, known), select(y_pred, known))

    def model(outputs, loss):
        keras.utils.set_random_seed(8)
        inputs = keras.Input((x.shape[1],))
        hidden = keras.layers.Dense(4, "tanh")(inputs)
        heads = {name: keras.layers.Dense(1, name=name)(hidden) for name in outputs}
        made = keras.Model(inputs, heads)
        made.compile(keras.optimizers.SGD(0.1), {name: loss for name in outputs})
        return made

    x, _ = data()
    labels = {name: np.random.default_rng(i).random((COUNT, 1)) for i, name in enumerate("ab")}
    if SIZE > 1:
        labels["a"][SIZE - 1 :: SIZE] = np.nan
    labels["b"][: COUNT // 3] = np.nan
    labels["b"][::7] = 0.5  # no batch of one process is without a label
    for outputs, loss in (("a", of_known), ("ab", of_known), ("ab", mean_of_known)):
        y = {name: labels[name] for name in outputs}
        trained, expected = model(outputs, loss), model(outputs, loss)
        history = together(trained, x, y, scalar_losses="mean").history
        wanted = alone(expected, x, y).history
        assert_alike(trained, expected)
        for name, values in wanted.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)
    if BACKEND == "torch":  # the others do not run `compute_loss` for each batch
        assert_own_loss_of_some_ranks(x, labels["a"])


def assert_own_loss_of_some_ranks(x, y):
    """A `compute_loss` that calls losses, among them one that drops samples, if there are any."""
    mean = keras.losses.MeanAbsoluteError()

    class Drops(keras.losses.Loss):
        def call(self, y, y_pred):
            known = ops.isfinite(y[:, 0])
            return ops.abs(y[known] - y_pred[known])

    class Known(keras.Sequential):
        empty = ops.zeros(())

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            known = ops.isfinite(y[:, 0])
            if not known.any():
                return self.empty
            return mean(y[known], y_pred[known]) + Drops()(y, y_pred)

    class Low(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            low = y[:, 0] < 0.5
            return mean(y, y_pred) + mean(y[low], y_pred[low])

    def make(cls=Known):
        keras.utils.set_random_seed(8)
        model = cls([keras.Input((x.shape[1],)), keras.layers.Dense(1)])
        model.compile("sgd")
        return model

    class WithoutGradient(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return mean(y, ops.convert_to_tensor(ops.convert_to_numpy(y_pred)))

    expected = make()
    alone(expected, x, y)
    word = "losses of different numbers of samples"
    for Known.empty in (ops.zeros(()), 0.0):
        trained = make()
        text = said(lambda m=trained: together(m, x, y))
        assert_alike(trained, expected)
        assert word not in text, text
    error = fails(lambda: together(make(WithoutGradient), x, y))
    assert "does not require grad" in str(error), error
    text = said(lambda: together(make(Low), x, np.nan_to_num(y)))
    assert (word in text) == (RANK == 0 and SIZE > 1), text


@in_float64
def check_stateful_rnn_goes_on_where_it_was():
    if BACKEND == "torch":
        return  # where Keras cannot train one

    def make(batch):
        keras.utils.set_random_seed(9)
        model = keras.Sequential(
            [
                keras.layers.Input(batch_shape=(batch, 3, 2)),
                keras.layers.GRU(3, stateful=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    random = np.random.default_rng(5)
    x, y = random.standard_normal((COUNT, 3, 2)), random.standard_normal((COUNT, 1))
    model, expected = make(N), make(N * SIZE)
    for _ in range(2):
        together(model, x, y, epochs=1)
        alone(expected, x, y, epochs=1)
    for weight, want in zip(model.trainable_weights, expected.trainable_weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), want.numpy(), rtol=1e-6, atol=1e-8)
    states = COMM.allgather(model.layers[0].states[0].numpy())
    wanted = expected.layers[0].states[0].numpy()
    for rank, state in enumerate(states):
        np.testing.assert_allclose(state, wanted[rank::SIZE], rtol=1e-6, atol=1e-8)


def check_layers_adapted_to_parts():
    if BACKEND != "tensorflow":
        return  # which alone computes with strings in a step
    import tensorflow as tf

    texts = keras.layers.TextVectorization(output_mode="tf_idf", max_tokens=4)
    texts.adapt(np.array([f"one two rank{RANK}", "one"]))
    bins = keras.layers.Discretization(num_bins=3, output_mode="one_hot")
    bins.adapt(np.arange(10.0) * (RANK + 1))
    words, number = keras.Input((), dtype="string"), keras.Input((1,))
    joined = keras.layers.Concatenate()([texts(words), bins(number)])
    model = keras.Model([words, number], keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    x = [tf.constant(["one rank0"] * N), np.arange(float(N))[:, None]]

    def learnt():
        return list(bins.bin_boundaries), list(texts.get_vocabulary())

    roots = COMM.bcast(learnt())
    text = said(lambda: model.fit(x, np.ones((N, 1)), verbose=0, callbacks=both()))
    assert learnt() == roots
    wanted = RANK == 0 and SIZE > 1
    assert ("adapt" in text and "discretization" in text) == wanted, text
    assert_replicas_are_equal(model)
    everyones = COMM.allgather(model.predict_on_batch(x).tolist())
    assert all(each == everyones[0] for each in everyones)


def check_ranks_that_part_are_told():
    class Spoils(keras.callbacks.Callback):
        runs_on_all_ranks = True

        def on_train_end(self, logs=None):
            if RANK == SIZE - 1:
                kernel = self.model.layers[0].kernel
                kernel.assign(kernel + 1)

    x, y = data()
    for check, is_told in ((None, True), (False, False)):
        text = said(
            lambda c=check: together(dense(), x, y, callbacks=both(Spoils(), check_replicas=c))
        )
        wanted = is_told and RANK == 0 and SIZE > 1
        assert (f"kernel on rank {SIZE - 1} is not rank 0's" in text) == wanted, text
    assert "differ" not in said(lambda: together(dense(), x, y))


def check_a_step_without_optimizer_is_told():
    class Moves(keras.Model):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate
            self.kept = keras.layers.Dense(1)

        def build(self, shape):
            self.kept.build(shape)

        def call(self, x):
            return self.kept(x)

        @stateful
        def train_step(self, data):
            bias = self.kept.bias
            bias.assign(bias - self.rate * ops.mean(data[0]))
            return {"loss": ops.mean(self(data[0]))}

    x, y = data()
    for rate in (1.0, 0.0):  # with the second the steps train nothing
        for steps in (1, 100) if TAKES_SEVERAL_STEPS else (1,):  # data end in the first execution
            model = Moves(rate)
            model.build((None, 5))
            model.compile("sgd", steps_per_execution=steps)
            text = said(lambda each=model: together(each, x, y))
            assert ("no Keras optimizer" in text) == (RANK == 0 and SIZE > 1 and rate > 0), text


def check_steps_of_data_of_unknown_length():
    """Adam counts as many as there are: Keras alone counts one more in each epoch."""
    if BACKEND != "tensorflow":
        return  # where Keras draws the batch before it calls the step
    import tensorflow as tf

    x, y = data()

    def batches():
        for i in range(STEPS):
            yield x[i * N : (i + 1) * N], y[i * N : (i + 1) * N]

    shapes = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))
    model = dense(optimizer=LATE(0.01))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=shapes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*ran out of data.*")
        model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=both())
    assert int(model.optimizer.iterations.numpy()) == 3 * STEPS


if __name__ == "__main__":
    run_checks(globals())
