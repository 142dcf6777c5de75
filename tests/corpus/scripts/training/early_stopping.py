# Training stops when the validation gets no better, and the best weights return.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(128)
x = rng.standard_normal((40, 5))
y = rng.standard_normal((40, 1))
x_val, y_val = x[32:], y[32:]
x, y = x[:32], y[:32]

model = keras.Sequential([keras.Input((5,)), layers.Dense(12, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.15), "mse", metrics=["mae"])
stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
history = model.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=8,
    shuffle=False,
    verbose=0,
    validation_data=(x_val, y_val),
    callbacks=[stop],
)
