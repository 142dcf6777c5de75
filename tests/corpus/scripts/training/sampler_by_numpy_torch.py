# A sampler of one's own, which draws its order by NumPy.
# backend: torch
# compare: replicas
import keras
import numpy as np
import torch
from keras import layers
from torch.utils.data import DataLoader, Dataset, Sampler

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(151)
x = rng.standard_normal((48, 5))
y = x.sum(1, keepdims=True)
disjoint = []


class Samples(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, index):
        disjoint.append(int(index))
        return torch.tensor(x[index]), torch.tensor(y[index])


class Mixed(Sampler):
    def __len__(self):
        return len(x)

    def __iter__(self):
        return iter(np.random.permutation(len(x)).tolist())


loader = DataLoader(Samples(), batch_size=BATCH, sampler=Mixed())

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(loader, epochs=1, verbose=0)
