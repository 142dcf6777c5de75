# Codes from a codebook that gradients train, straight through the choice of a code.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class VectorQuantizer(layers.Layer):
    def __init__(self, count, width, beta=0.25):
        super().__init__()
        self.count, self.width, self.beta = count, width, beta

    def build(self, shape):
        self.codebook = self.add_weight(
            shape=(self.width, self.count), initializer="random_uniform"
        )

    def call(self, x):
        flat = ops.reshape(x, (-1, self.width))
        distances = ops.sum(ops.square(flat[:, :, None] - self.codebook[None]), axis=1)
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.count, dtype=x.dtype)
        codes = ops.reshape(ops.matmul(chosen, ops.transpose(self.codebook)), ops.shape(x))
        self.add_loss(self.beta * ops.mean(ops.square(ops.stop_gradient(codes) - x)))
        self.add_loss(ops.mean(ops.square(codes - ops.stop_gradient(x))))
        return x + ops.stop_gradient(codes - x)


rng = np.random.default_rng(109)
images = rng.uniform(0, 1, (32, 8, 1))

inputs = keras.Input((8, 1))
x = layers.Conv1D(4, 2, strides=2, activation="relu")(inputs)
x = layers.Conv1D(3, 1)(x)
x = VectorQuantizer(5, 3)(x)
outputs = layers.Conv1DTranspose(1, 2, strides=2)(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(images, images, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
