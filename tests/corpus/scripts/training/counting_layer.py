# A layer counts its calls, and scales by how often it has been called.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Counting(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation="mean", name="calls"
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x / ops.sqrt(1.0 + self.calls)


rng = np.random.default_rng(147)
x = rng.standard_normal((32, 5))
y = x[:, :1]

inputs = keras.Input((5,))
outputs = layers.Dense(1)(Counting()(layers.Dense(4, "tanh")(inputs)))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
