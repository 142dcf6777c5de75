# The learning rate warms up and then falls along a cosine.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(127)
x = rng.standard_normal((32, 5))
y = np.tanh(x[:, :1])

rate = keras.optimizers.schedules.CosineDecay(0.0, 6, warmup_target=0.1, warmup_steps=2)
model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
