# A layer adds the sum of its activity over a batch to the loss.
# ddl_callback: scalar_losses="sum"
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Active(layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        return x


rng = np.random.default_rng(142)
x = rng.standard_normal((32, 5))
y = x[:, :1]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), Active(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
