# A loss that is not reduced, whose values the gradient sums.
# backend: tensorflow
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(143)
x = rng.standard_normal((32, 5))
y = x[:, :1]

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
loss = keras.losses.MeanSquaredError(reduction=None)
model.compile(keras.optimizers.SGD(0.01), loss)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
