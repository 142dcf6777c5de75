# Numbers are normalized in the model, by what a layer has seen of all data.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(43)
x = rng.normal([100, -3, 0.01], [30, 1, 0.002], (32, 3))
y = x @ [0.1, 2, 300] + rng.standard_normal(32)

normalize = layers.Normalization()
normalize.adapt(x)
scale = layers.Normalization(mean=y.mean(), variance=y.var(), invert=True)
model = keras.Sequential(
    [keras.Input((3,)), normalize, layers.Dense(6, activation="relu"), layers.Dense(1), scale]
)
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["r2_score"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
