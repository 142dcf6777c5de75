# Sequences of numbers, padded by a value that a Masking layer hides from a GRU.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(29)
series = rng.uniform(0.5, 1, (32, 6, 2))
lengths = rng.integers(1, 7, 32)
series[np.arange(6) >= lengths[:, None]] = -1
totals = np.where(series < 0, 0, series).sum((1, 2))

model = keras.Sequential(
    [
        keras.Input((6, 2)),
        layers.Masking(-1.0),
        layers.GRU(4),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adamax(0.05), "mse", metrics=["mae"])
history = model.fit(series, totals, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
