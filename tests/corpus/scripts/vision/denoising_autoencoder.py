# An autoencoder that takes noise off images; the noise is data.
# rtol: 1e-3
import keras
import numpy as np
from keras import layers

BATCH = 8

rng = np.random.default_rng(16)
clean = rng.uniform(0, 1, (32, 8, 8, 1)).round()
noisy = np.clip(clean + 0.4 * rng.standard_normal(clean.shape), 0, 1)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Conv2D(6, 3, strides=2, padding="same", activation="relu")]
        )
        self.decoder = keras.Sequential(
            [
                layers.UpSampling2D(2),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ]
        )

    def call(self, images):
        return self.decoder(self.encoder(images))


model = Autoencoder()
model.compile("adam", "binary_crossentropy", metrics=["mae"])
history = model.fit(noisy, clean, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
