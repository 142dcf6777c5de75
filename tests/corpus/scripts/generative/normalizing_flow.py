# Coupling layers turn data into a bell curve; the loss is the negative log-likelihood.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Flow(keras.Model):
    def __init__(self, couplings=3):
        super().__init__()
        self.networks = [
            keras.Sequential(
                [layers.Dense(6, "relu", kernel_regularizer="l2"), layers.Dense(2, "tanh")]
            )
            for _ in range(couplings)
        ]

    def call(self, x):
        log_determinant = 0.0
        for number, network in enumerate(self.networks):
            kept, changed = x[:, number % 2, None], x[:, 1 - number % 2, None]
            scale, shift = ops.split(network(kept), 2, axis=1)
            changed = changed * ops.exp(scale) + shift
            log_determinant = log_determinant + scale[:, 0]
            x = ops.concatenate([kept, changed] if number % 2 == 0 else [changed, kept], axis=1)
        return x, log_determinant

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        z, log_determinant = y_pred
        return ops.mean(ops.sum(ops.square(z), axis=1) / 2 - log_determinant) + sum(self.losses)


rng = np.random.default_rng(111)
angles = rng.uniform(0, np.pi, (32, 1))
moons = np.concatenate([np.cos(angles), np.sin(angles)], 1) + 0.05 * rng.standard_normal((32, 2))

model = Flow()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(moons, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
