# Gated residual networks, and one that chooses among variables.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WIDTH = 4


class GatedResidual(layers.Layer):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(WIDTH, activation="elu")
        self.linear = layers.Dense(WIDTH)
        self.gate = layers.Dense(WIDTH, activation="sigmoid")
        self.project = layers.Dense(WIDTH)
        self.norm = layers.LayerNormalization()

    def call(self, x):
        hidden = self.linear(self.hidden(x))
        return self.norm(self.project(x) + self.gate(hidden) * hidden)


class Selection(layers.Layer):
    def __init__(self, count):
        super().__init__()
        self.parts = [GatedResidual() for _ in range(count)]
        self.choose = layers.Dense(count, activation="softmax")

    def call(self, x):
        columns = [part(x[:, i : i + 1]) for i, part in enumerate(self.parts)]
        weights = self.choose(x)[:, :, None]
        return ops.sum(weights * ops.stack(columns, 1), axis=1)


rng = np.random.default_rng(47)
x = rng.standard_normal((32, 2))
y = (x[:, 0] * x[:, 1] > 0).astype("float64")

inputs = keras.Input((2,))
outputs = layers.Dense(1, activation="sigmoid")(Selection(2)(inputs))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
