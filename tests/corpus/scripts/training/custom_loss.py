# Losses of its own: a function, a class with arguments, and their weighted sum.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Asymmetric(keras.losses.Loss):
    def __init__(self, above, reduction="sum_over_batch_size", name="asymmetric"):
        super().__init__(reduction=reduction, name=name)
        self.above = above

    def call(self, y_true, y_pred):
        error = y_pred - y_true
        return ops.mean(ops.where(error > 0, self.above * error, -error), axis=-1)


def relative(y_true, y_pred):
    return ops.mean(ops.square((y_true - y_pred) / (1 + ops.abs(y_true))), axis=-1)


rng = np.random.default_rng(146)
x = rng.standard_normal((32, 5))
first, second = x[:, :2], x[:, 2:3]

inputs = keras.Input((5,))
hidden = layers.Dense(6, "tanh")(inputs)
model = keras.Model(
    inputs, {"a": layers.Dense(2, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)}
)
model.compile(
    keras.optimizers.SGD(0.05), {"a": Asymmetric(3.0), "b": relative}, loss_weights={"a": 1, "b": 2}
)
history = model.fit(
    x, {"a": first, "b": second}, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
