# A GAN of short series: both networks have learnt positions, and each an Adam of its own.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
LENGTH, WIDTH = 6, 4


class Network(keras.Model):
    def __init__(self, each_step):
        super().__init__()
        self.each_step = each_step
        self.inwards = layers.Dense(WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)
        self.mix = layers.Dense(8, activation="tanh")
        self.out = layers.Dense(1)

    def call(self, series):
        x = self.mix(self.inwards(series) + self.positions(ops.arange(LENGTH)))
        return self.out(x if self.each_step else ops.mean(x, axis=1))


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.discriminator, self.generator = Network(False), Network(True)
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise)
            judged = self.discriminator(fake)
            g_loss = ops.mean(ops.softplus(-judged))
            d_loss = ops.mean(ops.softplus(-self.discriminator(real)) + ops.softplus(judged))
        networks = [
            (self.discriminator, self.d_optimizer, d_loss, self.d_tracker),
            (self.generator, self.g_optimizer, g_loss, self.g_tracker),
        ]
        for network, optimizer, loss, tracker in networks:
            variables = network.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(188)
phases = rng.uniform(0, 6, (32, 1, 1))
waves = np.sin(phases + np.arange(LENGTH)[:, None])
noises = rng.standard_normal((32, LENGTH, 2))

model = Gan()
model.compile(keras.optimizers.Adam(0.02), keras.optimizers.Adam(0.01, beta_1=0.5))
history = model.fit(waves, noises, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
