# A variational autoencoder that draws its own noise.
# compare: replicas
import keras
import numpy as np
from keras import layers, ops

BATCH = 8


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


class Vae(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu")
        self.mean, self.log_variance = layers.Dense(2), layers.Dense(2)
        self.sampling = Sampling()
        self.decoder = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(12, "sigmoid")])

    def call(self, x):
        x = self.hidden(x)
        mean, log_variance = self.mean(x), self.log_variance(x)
        divergence = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
        self.add_loss(0.5 * ops.mean(ops.sum(divergence, axis=1)))
        return self.decoder(self.sampling([mean, log_variance]))


rng = np.random.default_rng(106)
images = rng.uniform(0, 1, (32, 12)).astype("float32")

model = Vae()
model.compile("adam", "mse")
history = model.fit(images, images, batch_size=BATCH, epochs=2, verbose=0)
