"""The networks whose training the benchmarks time."""

import keras


def mnist_cnn():
    """Keras's own example of a convolutional network, of 1.2 million parameters."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    return model, (28, 28, 1)


def mlp():
    """A network of 20 million parameters, whose step is mostly memory traffic."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((784,)),
            layers.Dense(4096, activation="relu"),
            layers.Dense(4096, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    return model, (784,)


def transformer():
    """Two blocks of a Transformer over 49 patches of an image, of 270 thousand parameters."""
    layers = keras.layers
    inputs = layers.Input((49, 16))
    x = layers.Dense(128)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        inner = layers.Dense(128)(layers.Dense(256, activation="relu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    return model, (49, 16)


# With the steps of an epoch.
MODELS = {"mnist_cnn": (mnist_cnn, 40), "mlp": (mlp, 15), "transformer": (transformer, 40)}
