# Gradients of two batches make one update.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(124)
x = rng.standard_normal((32, 5))
y = x[:, :1] * x[:, 1:2]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02, gradient_accumulation_steps=2), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
