# A network in float32, as most are.
# rtol: 1e-4
import keras
import numpy as np
from keras import layers

BATCH = 8

rng = np.random.default_rng(154)
x = rng.standard_normal((32, 6)).astype("float32")
y = x[:, :1] * x[:, 1:2]

model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
