# Two steps run at a time.
# backend: tensorflow jax
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(151)
x = rng.standard_normal((32, 5))
y = x[:, :1] - x[:, 3:4]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "gelu"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], steps_per_execution=2)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
