# A GAN without `call`: two optimizers as attributes, noise as data, PyTorch's backward.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Gan(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer, g_optimizer, loss):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.judge = d_optimizer, g_optimizer, loss

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def train_step(self, data):
        real, noise = data
        fake = self.generator(noise)
        both = torch.cat([real, fake])
        truth = torch.cat([torch.ones_like(real[:, :1]), torch.zeros_like(fake[:, :1])])
        self.zero_grad()
        d_loss = self.judge(truth, self.discriminator(both))
        d_loss.backward()
        variables = self.discriminator.trainable_weights
        with torch.no_grad():
            self.d_optimizer.apply([v.value.grad for v in variables], variables)
        self.zero_grad()
        answers = self.discriminator(self.generator(noise))
        g_loss = self.judge(torch.ones_like(answers), answers)
        g_loss.backward()
        variables = self.generator.trainable_weights
        with torch.no_grad():
            self.g_optimizer.apply([v.value.grad for v in variables], variables)
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
