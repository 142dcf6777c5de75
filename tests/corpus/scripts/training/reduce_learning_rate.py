# The learning rate falls on a plateau, and at the epochs that a function says.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(129)
x = rng.standard_normal((32, 5))
y = rng.standard_normal((32, 1))

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)
first = model.fit(x, y, batch_size=BATCH, epochs=4, shuffle=False, verbose=0, callbacks=[plateau])
scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch))
second = model.fit(
    x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=[scheduler]
)
history = [first, second]
