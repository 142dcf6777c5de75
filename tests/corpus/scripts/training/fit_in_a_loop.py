# Many fits of one epoch each, with a look at the model between them.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(131)
x = rng.standard_normal((32, 5))
y = np.abs(x[:, :1])
x_test, y_test = x[:6], y[:6]

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile("adam", "mse")
history, scores = [], []
for _ in range(3):
    history.append(model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0))
    scores.append(model.evaluate(x_test, y_test, verbose=0))
