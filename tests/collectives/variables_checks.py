"""One rank's variables on all."""

import keras
import ml_dtypes
import numpy as np
from ranks import assert_same_on_all, assert_world_works, comm, error_of
from steps import backend_variable

import easyddl as ddl

# What a tensor is called that is no variable; on PyTorch all are.
TENSOR = {"tensorflow": "EagerTensor", "jax": "ArrayImpl"}.get(keras.backend.backend())


def keras_variable(array):
    return keras.Variable(array, dtype=array.dtype.name, trainable=False)


def differing_variables(rank):
    """Keras's and the backend's own, of several dtypes and shapes, with this rank's values."""
    random = np.random.default_rng([17, rank])
    arrays = [
        random.standard_normal((3, 4)).astype(np.float32),
        random.standard_normal(300_001).astype(np.float32),
        random.integers(0, 2**60, 5),
        random.standard_normal(()).astype(np.float16),
        np.zeros((0, 2), np.float32),
        random.random(3) < 0.5,
        random.integers(0, 100, (2, 3)).astype(ml_dtypes.bfloat16),
        random.integers(-9, 9, 7).astype(np.int32),
    ]
    makers = [keras_variable, *[backend_variable] * 5, keras_variable, keras_variable]
    return arrays, [make(array) for make, array in zip(makers, arrays, strict=True)]


def check_variables_of_every_root():
    for root in range(ddl.size()):
        _, variables = differing_variables(ddl.rank())
        expected, _ = differing_variables(root)
        ddl.broadcast_variables(variables, root_rank=root)
        for variable, array in zip(variables, expected, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), array)


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
    rank = np.float32(ddl.rank())
    variables = [backend_variable(rank), backend_variable(np.array([rank] * 2))]
    ddl.broadcast_variables((variable for variable in variables), root_rank=ddl.size() - 1)
    assert float(variables[1][1]) == ddl.size() - 1


def check_what_is_no_variable():
    wrong = [(np.zeros(3), "ndarray"), (1.0, "float")]
    if TENSOR is not None:
        wrong.append((keras.ops.zeros(3), TENSOR))
    for item, name in wrong:
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
        return keras.Variable(np.zeros(shape, "float32"), name="kernel")

    whole = keras.Variable(np.array([1, 2, 3]), dtype="int32", trainable=False, name="kernel")
    cases = [
        ([weight((3, 2))], [weight((2, 3))], "kernel"),
        ([weight(3)], [weight(3), weight(1)], "(1,)"),
        ([weight(3)], [whole], "int32"),
    ]
    if TENSOR is not None:
        cases.append(([weight(3)], [keras.ops.zeros(3)], TENSOR))
    for mine, theirs, words in cases:
        given = theirs if other else mine
        text = error_of(RuntimeError, lambda given=given: ddl.broadcast_variables(given))
        assert_same_on_all(text)
        assert f"Rank {last} called broadcast_variables" in text and words in text, text
        assert_world_works()
