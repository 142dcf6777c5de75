# Layers are thawed between two fits, and the model is not compiled again.
# backend: tensorflow torch
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(14)
x = rng.standard_normal((32, 6))
y = rng.standard_normal((32, 1))

hidden = layers.Dense(5, activation="tanh")
model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.optimizer.build(model.trainable_variables)
hidden.trainable = False
first = model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
hidden.trainable = True
second = model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
history = [first, second]
