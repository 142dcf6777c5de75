# Two heads that are trained in turn. A step leaves the weights of the other head alone.
# backend: tensorflow torch
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Heads(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = layers.Dense(8, "tanh")
        self.heads = [layers.Dense(1), layers.Dense(1)]
        self.steps = 0

    def build(self, shape):
        self.trunk.build(shape)
        for head in self.heads:
            head.build((None, 8))
        self.built = True

    def call(self, inputs):
        return self.heads[self.steps % 2](self.trunk(inputs))

    def train_step(self, data):
        logs = super().train_step(data)
        self.steps += 1
        return logs


rng = np.random.default_rng(146)
x = rng.standard_normal((40, 4))
y = np.tanh(x.sum(1, keepdims=True))

model = Heads()
model.build((None, 4))
model.compile(keras.optimizers.Adam(0.02, weight_decay=0.01), "mse", run_eagerly=True)
history = model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
