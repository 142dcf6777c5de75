# A GAN without `call`: two optimizers as attributes, noise as data, two gradient tapes.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Gan(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.judge = d_optimizer, g_optimizer, loss

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def train_step(self, data):
        real, noise = data
        fake = self.generator(noise)
        both = tf.concat([real, fake], 0)
        truth = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(fake[:, :1])], 0)
        with tf.GradientTape() as tape:
            d_loss = self.judge(truth, self.discriminator(both))
        variables = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, variables), variables)
        with tf.GradientTape() as tape:
            answers = self.discriminator(self.generator(noise))
            g_loss = self.judge(tf.ones_like(answers), answers)
        variables = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def network(inputs, outputs):
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(8, "leaky_relu"), layers.Dense(outputs)]
    )


rng = np.random.default_rng(101)
points = rng.normal([2, -1], 0.3, (32, 2))
noises = rng.standard_normal((32, 3))

model = Gan(network(2, 1), network(3, 2))
model.compile(
    keras.optimizers.Adam(0.01),
    keras.optimizers.Adam(0.02, beta_1=0.5),
    keras.losses.BinaryCrossentropy(from_logits=True),
)
history = model.fit(points, noises, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
