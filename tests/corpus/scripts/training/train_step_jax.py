# A train_step by stateless calls, with the state as a tuple.
# backend: jax
import jax
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Custom(keras.Model):
    def loss_and_updates(self, trainable, non_trainable, x, y):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        return self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        function = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (y_pred, non_trainable)), gradients = function(trainable, non_trainable, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, updated = {}, []
        for metric in self.metrics:
            mine = metrics[len(updated) : len(updated) + len(metric.variables)]
            values = (loss,) if metric.name == "loss" else (y, y_pred)
            mine = metric.stateless_update_state(mine, *values)
            logs[metric.name] = metric.stateless_result(mine)
            updated += mine
        return logs, (trainable, non_trainable, optimizer, updated)


rng = np.random.default_rng(121)
x = rng.standard_normal((32, 5))
y = x[:, :2] @ rng.standard_normal((2, 1))

inputs = keras.Input((5,))
model = Custom(inputs, layers.Dense(1)(layers.Dense(6, activation="tanh")(inputs)))
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
