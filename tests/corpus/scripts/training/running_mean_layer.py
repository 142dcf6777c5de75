# A layer subtracts the running mean of the batches before.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Centred(layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-1],),
            initializer="zeros",
            trainable=False,
            aggregation="mean",
            name="mean",
        )

    def call(self, x, training=False):
        centred = x - ops.copy(self.mean)
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return centred


rng = np.random.default_rng(148)
x = 3 + rng.standard_normal((32, 5))
y = x[:, :1]
held_out = x[:8] + 0.1, y[:8]

inputs = keras.Input((5,))
outputs = layers.Dense(1)(Centred()(layers.Dense(4)(inputs)))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.002), "mse")
history = model.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_data=held_out,
)
