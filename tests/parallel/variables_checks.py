"""One rank's variables on all."""

import keras
import numpy as np
import tensorflow as tf
from ranks import assert_same_on_all, assert_world_works, comm, error_of

import easyddl as ddl


def differing_variables(rank):
    """Keras's and TensorFlow's, of several dtypes and shapes, with this rank's values."""
    random = np.random.default_rng([17, rank])
    arrays = [
        random.standard_normal((3, 4)).astype(np.float32),
        random.standard_normal(300_001).astype(np.float32),
        random.integers(0, 2**60, 5),
        random.standard_normal(()).astype(np.float16),
        np.zeros((0, 2), np.float32),
        random.random(3) < 0.5,
    ]
    makers = (keras.Variable, tf.Variable, tf.Variable, tf.Variable, tf.Variable, tf.Variable)
    makers = [lambda a: keras.Variable(a, dtype=a.dtype.name), *makers[1:]]
    return arrays, [make(array) for make, array in zip(makers, arrays, strict=True)]


def check_variables_of_every_root():
    for root in range(ddl.size()):
        _, variables = differing_variables(ddl.rank())
        expected, _ = differing_variables(root)
        ddl.broadcast_variables(variables, root_rank=root)
        for variable, array in zip(variables, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(variable.numpy()), array)


def check_model_and_optimizer():
    keras.utils.set_random_seed(100 + ddl.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(ddl.rank() + 5)
    mine = [np.array(weight) for weight in model.get_weights()]
    roots = comm().bcast(mine)
    assert ddl.is_root() or not np.array_equal(mine[0], roots[0])
    ddl.broadcast_variables(model.weights + optimizer.variables)
    for weight, expected in zip(model.get_weights(), roots, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert int(optimizer.iterations.numpy()) == 5


def check_lists_of_any_kind():
    ddl.broadcast_variables([])
    ddl.broadcast_variables(())
    variables = [tf.Variable(float(ddl.rank())), tf.Variable([float(ddl.rank())] * 2)]
    ddl.broadcast_variables((variable for variable in variables), root_rank=ddl.size() - 1)
    assert float(variables[1][1]) == ddl.size() - 1


def check_what_is_no_variable():
    for item, name in ((np.zeros(3), "ndarray"), (tf.zeros(3), "EagerTensor"), (1.0, "float")):
        text = error_of(TypeError, lambda item=item: ddl.broadcast_variables([item]))
        assert "`variables` must be a list of variables" in text and name in text, text
        assert_world_works()
    error_of(TypeError, lambda: ddl.broadcast_variables(None))
    text = error_of(ValueError, lambda: ddl.broadcast_variables([], root_rank=ddl.size()))
    assert "`root_rank` must be a rank" in text, text
    assert_world_works()


def check_variables_that_differ_by_rank():
    if ddl.size() == 1:
        return
    last = ddl.size() - 1
    other = ddl.rank() == last

    def weight(shape):
        return tf.Variable(tf.zeros(shape), name="kernel")

    for mine, theirs, words in (
        ([weight((3, 2))], [weight((2, 3))], "kernel"),
        ([weight(3)], [weight(3), weight(1)], "(1,)"),
        ([weight(3)], [tf.zeros(3)], "EagerTensor"),
        ([weight(3)], [tf.Variable([1, 2, 3], name="kernel")], "int32"),
    ):
        given = theirs if other else mine
        text = error_of(RuntimeError, lambda given=given: ddl.broadcast_variables(given))
        assert_same_on_all(text)
        assert f"Rank {last} called broadcast_variables" in text and words in text, text
        assert_world_works()
