# A block is computed again in the backward pass, to save memory.
# backend: jax torch
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = layers.Dense(width, "tanh"), layers.Dense(width)

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, self.first.units))

    def call(self, x):
        return x + self.second(self.first(x))


rng = np.random.default_rng(152)
x = rng.standard_normal((32, 6))
y = x[:, :1] * x[:, 1:2]

inputs = keras.Input((6,))
with keras.RematScope(mode="full"):
    block = Block(6)
model = keras.Model(inputs, layers.Dense(1)(block(inputs)))
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
