# A train_step with PyTorch's backward that Keras's own loss and metrics go through.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Custom(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        variables = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(121)
x = rng.standard_normal((32, 5))
y = x[:, :2] @ rng.standard_normal((2, 1))

inputs = keras.Input((5,))
model = Custom(inputs, layers.Dense(1)(layers.Dense(6, activation="tanh")(inputs)))
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
