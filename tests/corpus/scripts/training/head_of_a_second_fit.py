# A second head that only the second fit trains, with the same optimizer and its momenta.
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
        self.coarse, self.fine = layers.Dense(1), layers.Dense(1)
        self.is_fine = False

    def build(self, shape):
        self.trunk.build(shape)
        for head in (self.coarse, self.fine):
            head.build((None, 8))
        self.built = True

    def call(self, inputs):
        hidden = self.trunk(inputs)
        return self.coarse(hidden) + (self.fine(hidden) if self.is_fine else 0)


rng = np.random.default_rng(147)
x = rng.standard_normal((32, 4))
y = np.tanh(x.sum(1, keepdims=True))

model = Heads()
model.build((None, 4))
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", run_eagerly=True)
history = [model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)]
model.is_fine = True
history.append(model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0))
