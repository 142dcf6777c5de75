# Quantiles of what comes next, by a pinball loss for each of them.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
QUANTILES = (0.1, 0.5, 0.9)


def pinball(y, predicted):
    error = y - predicted
    quantiles = ops.cast(QUANTILES, error.dtype)
    return ops.mean(ops.maximum(quantiles * error, (quantiles - 1) * error), axis=-1)


rng = np.random.default_rng(37)
x = rng.standard_normal((32, 6))
y = x[:, :1] + rng.exponential(1, (32, 1))

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(len(QUANTILES))]
)
model.compile(keras.optimizers.Adam(0.02), pinball)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
