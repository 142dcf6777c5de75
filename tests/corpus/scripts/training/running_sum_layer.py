# A layer adds up all that it has seen, which nothing else reads.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Total(layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(
            shape=(shape[-1],),
            initializer="zeros",
            trainable=False,
            aggregation="sum",
            name="total",
        )

    def call(self, x):
        self.total.assign(self.total + ops.sum(x, axis=0))
        return x


rng = np.random.default_rng(149)
x = 1 + rng.standard_normal((32, 5))
y = x[:, :1]

inputs = keras.Input((5,))
outputs = layers.Dense(1)(layers.Dense(4, "relu")(Total()(inputs)))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.02), "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
