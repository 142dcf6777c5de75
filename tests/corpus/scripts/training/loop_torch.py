# A training loop from scratch: PyTorch's backward, and a Keras optimizer.
# backend: torch
# optimizer: distributed
# before_fit: ddl.broadcast_variables(model.weights)
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(172)
x = rng.standard_normal((32, 5))
y = x[:, :1] * x[:, 1:2]
x_test = rng.standard_normal((12, 5))
y_test = x_test[:, :1] * x_test[:, 1:2]

model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh"), layers.Dense(1)])
optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.01)
loss_fn = keras.losses.Huber()


def train_step(x, y):
    model.zero_grad()
    loss = loss_fn(y, model(x, training=True))
    loss.backward()
    gradients = [v.value.grad for v in model.trainable_weights]
    with torch.no_grad():
        optimizer.apply(gradients, model.trainable_weights)
    return float(loss.detach())


history = {"test_loss": []}
for _ in range(3):
    for start in range(0, len(x), BATCH):
        train_step(
            torch.from_numpy(x[start : start + BATCH]), torch.from_numpy(y[start : start + BATCH])
        )
    with torch.no_grad():
        loss = loss_fn(y_test, model(torch.from_numpy(x_test), training=False))
    history["test_loss"].append(float(loss))
