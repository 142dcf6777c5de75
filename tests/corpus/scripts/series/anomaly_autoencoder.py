# An autoencoder of normal series, whose error then tells the others.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(35)
normal = np.sin(np.arange(12) / 2 + rng.uniform(0, 1, (32, 1)))[..., None]
strange = rng.standard_normal((8, 12, 1))

model = keras.Sequential(
    [
        keras.Input((12, 1)),
        layers.Conv1D(4, 3, strides=2, padding="same", activation="relu"),
        layers.Conv1D(2, 3, strides=2, padding="same", activation="relu"),
        layers.Conv1DTranspose(4, 3, strides=2, padding="same", activation="relu"),
        layers.Conv1DTranspose(1, 3, strides=2, padding="same"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "mae")
history = model.fit(normal, normal, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
errors = np.abs(model.predict(strange, verbose=0) - strange).mean((1, 2))
