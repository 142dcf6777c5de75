# Gradients clipped by the norm of all of them together.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(125)
x = rng.standard_normal((32, 5))
y = 10 * x[:, :1] * x[:, 1:2]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.3), "log_cosh")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
