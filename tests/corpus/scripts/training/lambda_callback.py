# A callback changes the model between epochs by what the logs say.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(130)
x = rng.standard_normal((32, 5))
y = (x[:, 0] > 0).astype("float64")

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])


def lower(epoch, logs):
    model.optimizer.learning_rate = 0.1 * logs["loss"]


seen = []
mine = [
    keras.callbacks.LambdaCallback(on_epoch_end=lower),
    keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch)),
]
history = model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=mine)
