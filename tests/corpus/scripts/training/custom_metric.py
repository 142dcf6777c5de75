# A metric of its own counts hits, and a function is another one.
# before_fit: ddl.register_metric(Hits, merge="sum")
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Hits(keras.metrics.Metric):
    def __init__(self, name="hits", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        near = ops.cast(ops.abs(y_true - y_pred) < 0.5, self.dtype)
        self.count.assign_add(ops.sum(near))

    def result(self):
        return self.count.value


def largest_error(y_true, y_pred):
    return ops.max(ops.abs(y_true - y_pred), axis=-1)


rng = np.random.default_rng(145)
x = rng.standard_normal((32, 5))
y = x[:, :2]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(2)])
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=[Hits(), largest_error])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
