# A GRU forecasts the next value of a series, with a loss that outliers hurt less.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(32)
walk = np.cumsum(rng.standard_normal(40))
windows = np.stack([walk[i : i + 9] for i in range(32)])
x, y = windows[:, :-1, None], windows[:, -1:]

model = keras.Sequential([keras.Input((8, 1)), layers.GRU(6), layers.Dense(1)])
model.compile(
    keras.optimizers.Adam(0.02, clipvalue=0.5),
    keras.losses.Huber(),
    metrics=["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()],
)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
