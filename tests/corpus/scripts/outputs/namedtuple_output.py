# A model returns a named tuple of outputs, and its loss is its own.
# ddl_callback: scalar_losses="mean"
import collections

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
Output = collections.namedtuple("Output", ["mean", "spread"])


class Forecaster(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.mean = layers.Dense(1)
        self.spread = layers.Dense(1, activation="softplus")

    def call(self, x):
        x = self.hidden(x)
        return Output(self.mean(x), self.spread(x) + 0.1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scaled = (y - y_pred.mean) / y_pred.spread
        return ops.mean(ops.square(scaled) / 2 + ops.log(y_pred.spread))


rng = np.random.default_rng(93)
x = rng.standard_normal((32, 4))
y = x[:, :1] + rng.standard_normal((32, 1))

model = Forecaster()
model.compile(keras.optimizers.Adam(0.02))
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
