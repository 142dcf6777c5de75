# Layers add the mean of their activity to the loss; others have regularizers.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Sparse(layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * ops.mean(ops.abs(x)))
        return x


rng = np.random.default_rng(141)
x = rng.standard_normal((32, 5))
y = x[:, :1]

model = keras.Sequential(
    [
        keras.Input((5,)),
        layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2)),
        Sparse(),
        layers.ActivityRegularization(l2=1e-2),
        layers.Dense(1, bias_regularizer="l2"),
    ]
)
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
