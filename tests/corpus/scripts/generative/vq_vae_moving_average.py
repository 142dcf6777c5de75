# Codes from a codebook of moving averages, which every step updates from its batch.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
DECAY = 0.9


class MovingCodebook(layers.Layer):
    def __init__(self, count, width):
        super().__init__()
        self.count, self.width = count, width

    def build(self, shape):
        options = {"trainable": False, "aggregation": "mean"}
        self.shares = self.add_weight(shape=(self.count, 1), initializer="ones", **options)
        self.sums = self.add_weight(
            shape=(self.count, self.width), initializer="random_normal", **options
        )

    def call(self, x, training=False):
        codebook = self.sums / self.shares
        distances = ops.sum(ops.square(x[:, None] - codebook[None]), axis=2)
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.count, dtype=x.dtype)
        codes = ops.matmul(chosen, codebook)
        if training:
            shares = ops.mean(chosen, axis=0)[:, None]
            sums = ops.matmul(ops.transpose(chosen), x) / ops.cast(ops.shape(x)[0], x.dtype)
            self.shares.assign(DECAY * self.shares + (1 - DECAY) * shares)
            self.sums.assign(DECAY * self.sums + (1 - DECAY) * sums)
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(codes) - x)))
        return x + ops.stop_gradient(codes - x)


rng = np.random.default_rng(110)
points = rng.standard_normal((32, 6))

inputs = keras.Input((6,))
x = layers.Dense(3, activation="tanh")(inputs)
outputs = layers.Dense(6)(MovingCodebook(4, 3)(x))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(points, points, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
