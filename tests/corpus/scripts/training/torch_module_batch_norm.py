# A module of PyTorch's in a model, with batch normalization, whose batch is a rank's own.
# backend: torch
# compare: replicas
import keras
import numpy as np
import torch
from keras import layers

BATCH = 8

rng = np.random.default_rng(179)
x = rng.standard_normal((32, 5)).astype("float32")
y = x[:, :1] * x[:, 1:2]
held_out = x[:8] + 0.5, y[:8]

module = torch.nn.Sequential(
    torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
)
model = keras.Sequential(
    [
        keras.Input((5,)),
        layers.TorchModuleWrapper(module, output_shape=(None, 4)),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
fitted = model.fit(
    x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, validation_data=held_out
)
buffers = {name: buffer.numpy() for name, buffer in module.named_buffers()}
history = [fitted, buffers, {"prediction": model.predict(held_out[0], verbose=0)}]
