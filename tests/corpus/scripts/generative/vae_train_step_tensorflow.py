# A variational autoencoder with a train_step and three trackers; the noise is data.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Vae(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((12,)), layers.Dense(8, "relu"), layers.Dense(4)]
        )
        self.decoder = keras.Sequential(
            [keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(12)]
        )
        self.total = keras.metrics.Mean(name="total")
        self.likelihood = keras.metrics.Mean(name="likelihood")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total, self.likelihood, self.divergence]

    def train_step(self, data):
        x, noise = data
        with tf.GradientTape() as tape:
            mean, log_variance = ops.split(self.encoder(x), 2, axis=1)
            decoded = self.decoder(mean + ops.exp(0.5 * log_variance) * noise)
            likelihood = ops.mean(
                ops.sum(
                    keras.losses.binary_crossentropy(x[..., None], ops.sigmoid(decoded)[..., None]),
                    1,
                )
            )
            divergence = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
            divergence = ops.mean(ops.sum(divergence, axis=1)) / 2
            total = likelihood + divergence
        self.optimizer.apply_gradients(
            zip(tape.gradient(total, self.trainable_weights), self.trainable_weights, strict=True)
        )
        self.total.update_state(total)
        self.likelihood.update_state(likelihood)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(107)
images = rng.uniform(0, 1, (32, 12)).round()
noises = rng.standard_normal((32, 2))

model = Vae()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(images, noises, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
