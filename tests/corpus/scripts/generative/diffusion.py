# Denoising at random times, which is what diffusion models learn; noise and times are data.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = keras.Sequential([layers.Dense(12, "silu"), layers.Dense(12, "silu")])
        self.out = layers.Dense(3, kernel_initializer="zeros")

    def call(self, inputs):
        points, noise, times = inputs
        angles = times * np.pi / 2
        mixed = ops.cos(angles) * self.normalizer(points) + ops.sin(angles) * noise
        waves = ops.concatenate([ops.sin(8 * angles), ops.cos(8 * angles)], axis=1)
        guess = self.out(self.network(ops.concatenate([mixed, waves], axis=1)))
        return guess, (mixed - ops.sin(angles) * guess) / ops.maximum(ops.cos(angles), 0.1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.abs(x[1] - y_pred[0]))


rng = np.random.default_rng(108)
points = rng.normal(5, 2, (32, 3))
noises = rng.standard_normal((32, 3))
times = rng.uniform(0.02, 0.95, (32, 1))

model = Diffusion()
model.normalizer.adapt(points)
model.compile(keras.optimizers.AdamW(0.01, weight_decay=1e-4, use_ema=True, ema_momentum=0.9))
history = model.fit([points, noises, times], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
