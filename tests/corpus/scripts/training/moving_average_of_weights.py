# Weights are replaced by their moving averages now and then.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(126)
x = rng.standard_normal((32, 5))
y = x[:, :1] - x[:, 1:2]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)
model.compile(optimizer, "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
