# Batches from a PyDataset.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Waves(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.x[part], self.y[part]


rng = np.random.default_rng(134)
features = rng.standard_normal((32, 5))
waves = Waves(features, np.sin(features[:, :1]), BATCH)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(waves, epochs=2, shuffle=False, verbose=0)
