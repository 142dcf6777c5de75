"""Refuses Keras's own distribution of a step over devices, which excludes easyddl's over ranks."""

import keras


def refuse(model, method):
    """Raises an error if a `keras.distribution` is set.

    Keras would then divide the batches of each rank once more, on some versions without a word, and
    on JAX move the variables to devices that easyddl does not know.

    Args:
        model: A Keras model.
        method: String. The method that was called, for the error message.

    Raises:
        ValueError: If a distribution is set.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise ValueError(
            "keras.distribution shares a step out to several devices, and easyddl to several ranks "
            "of one device each. Leave keras.distribution.set_distribution out, or end it with "
            f"keras.distribution.set_distribution(None) before {method}. Received: model "
            f"{model.name!r} in {distribution}"
        )
