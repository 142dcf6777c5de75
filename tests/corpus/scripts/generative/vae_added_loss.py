# A variational autoencoder whose divergence is an added loss; the noise is data.
# ddl_callback: scalar_losses="mean"
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
LATENT = 2


class Sampling(layers.Layer):
    def call(self, mean, log_variance, noise):
        divergence = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
        self.add_loss(0.1 * ops.mean(ops.sum(divergence, axis=1)) / 2)
        return mean + ops.exp(log_variance / 2) * noise


rng = np.random.default_rng(105)
images = rng.uniform(0, 1, (32, 12)).round()
noises = rng.standard_normal((32, LATENT))

image_in, noise_in = keras.Input((12,)), keras.Input((LATENT,))
hidden = layers.Dense(8, activation="relu")(image_in)
mean, log_variance = layers.Dense(LATENT)(hidden), layers.Dense(LATENT)(hidden)
code = Sampling()(mean, log_variance, noise_in)
decoded = layers.Dense(8, activation="relu")(code)
outputs = layers.Dense(12, activation="sigmoid")(decoded)
model = keras.Model([image_in, noise_in], outputs)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
history = model.fit([images, noises], images, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
