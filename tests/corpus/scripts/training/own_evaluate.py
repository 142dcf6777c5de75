# An evaluate() that adds the largest error, by which training slows down and stops.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Regression(keras.Model):
    def evaluate(self, x=None, y=None, **kwargs):
        logs = super().evaluate(x, y, **kwargs)
        logs["worst"] = float(np.abs(self.predict(x, verbose=0) - y).max())
        return logs


rng = np.random.default_rng(174)
x = rng.standard_normal((32, 5))
y = rng.standard_normal((32, 1))
x_val = rng.standard_normal((10, 5))
y_val = rng.standard_normal((10, 1))

inputs = keras.Input((5,))
model = Regression(inputs, layers.Dense(1)(layers.Dense(12, "tanh")(inputs)))
model.compile(keras.optimizers.SGD(0.3), "mse", metrics=["mae"])
history = model.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=8,
    shuffle=False,
    verbose=0,
    validation_data=(x_val, y_val),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau("val_worst", factor=0.5, patience=1, mode="min"),
        keras.callbacks.EarlyStopping(
            "val_worst", min_delta=0.1, patience=2, mode="min", restore_best_weights=True
        ),
    ],
)
