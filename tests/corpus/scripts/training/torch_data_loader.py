# Batches from PyTorch's DataLoader.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(135)
x = torch.from_numpy(rng.standard_normal((32, 5)))
y = x[:, :1] * 2 - x[:, 1:2]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(loader, epochs=2, verbose=0)
