# A GAN on JAX: one optimizer, and losses that stop at the other network, in compute_loss.
# backend: jax
import jax
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Gan(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator

    def call(self, points):
        return self.discriminator(points)

    def frozen_answers(self, points):
        weights = [jax.lax.stop_gradient(v.value) for v in self.discriminator.trainable_variables]
        return self.discriminator.stateless_call(weights, [], points)[0]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        fake = self.generator(y)
        judged = self.discriminator(jax.lax.stop_gradient(fake))
        d_loss = ops.mean(ops.softplus(-y_pred)) + ops.mean(ops.softplus(judged))
        g_loss = ops.mean(ops.softplus(-self.frozen_answers(fake)))
        return d_loss + g_loss


def network(inputs, outputs):
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(8, "leaky_relu"), layers.Dense(outputs)]
    )


rng = np.random.default_rng(101)
points = rng.normal([2, -1], 0.3, (32, 2))
noises = rng.standard_normal((32, 3))

model = Gan(network(2, 1), network(3, 2))
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(points, noises, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
