"""Steps of a user's own, on whichever backend is in use."""

import keras

BACKEND = keras.backend.backend()


def gradients_of(compute, variables):
    """The value of a function without arguments, and its gradients by variables.

    On PyTorch they are what `backward` leaves in the parameters, as in Keras's own step.
    """
    if BACKEND == "torch":
        for variable in variables:
            variable.value.grad = None
        value = compute()
        value.backward()
        return value.detach(), [variable.value.grad for variable in variables]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = compute()
    return value, tape.gradient(value, variables)


def in_a_graph(function):
    """A function that is compiled, where a custom loop would have it so: else itself."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def backend_variable(array):
    """A variable of the framework's own, not of Keras's."""
    if BACKEND == "torch":
        import torch

        return torch.as_tensor(array)
    import tensorflow as tf

    return tf.Variable(array)
