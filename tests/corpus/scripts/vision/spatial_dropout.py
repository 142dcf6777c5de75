# Dropout of whole channels, of numbers, and noise between layers.
# compare: replicas
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(7)
images = rng.standard_normal((32, 6, 6, 2))
targets = images.sum((1, 2))

model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.SpatialDropout2D(0.3),
        layers.GaussianNoise(0.1),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(2),
    ]
)
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(images, targets, batch_size=BATCH, epochs=2, verbose=0)
