# An LSTM that forecasts several steps of several series at once.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(33)
times = np.arange(60)[:, None]
records = np.sin(times / [3, 5, 8]) + 0.1 * rng.standard_normal((60, 3))
records = (records - records.mean(0)) / records.std(0)
x = np.stack([records[i : i + 8] for i in range(32)])
y = np.stack([records[i + 8 : i + 11] for i in range(32)])

inputs = keras.Input((8, 3))
hidden = layers.LSTM(6)(inputs)
outputs = layers.Reshape((3, 3))(layers.Dense(9)(hidden))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
