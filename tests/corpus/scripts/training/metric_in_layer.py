# Layers watch what passes through them, by metrics of Keras's and by one of the script's own.
# backend: tensorflow torch
# before_fit: ddl.register_metric(Largest, merge="max")
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.found = self.add_weight(shape=(), initializer="zeros", name="found")

    def update_state(self, values, sample_weight=None):
        self.found.assign(ops.maximum(self.found, ops.max(values)))

    def result(self):
        return self.found + 0


class Watch(layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.activity = keras.metrics.Mean(name=f"{name}_activity")
        self.largest = Largest(name=f"{name}_largest")

    def call(self, x):
        size = ops.abs(x)
        self.activity.update_state(size)
        self.largest.update_state(size)
        return x


rng = np.random.default_rng(178)
x = rng.standard_normal((32, 5))
y = x[:, :1] - x[:, 1:2]
held_out = x[:8] + 0.5, y[:8]

inputs = keras.Input((5,))
hidden = Watch("hidden")(layers.Dense(6, "tanh")(inputs))
model = keras.Model(inputs, Watch("last")(layers.Dense(1)(hidden)))
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
history = model.fit(
    x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, validation_data=held_out
)
