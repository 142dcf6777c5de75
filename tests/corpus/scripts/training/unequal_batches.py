# The last batch of an epoch is smaller than the others.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(137)
x = rng.standard_normal((28, 5))
y = x[:, :1] - 1

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
