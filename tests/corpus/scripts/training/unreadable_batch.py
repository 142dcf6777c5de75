# A batch cannot be read at first. The script catches the error, and trains again.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Waves(keras.utils.PyDataset):
    def __init__(self, x, y, size, unreadable):
        super().__init__()
        self.x, self.y, self.size, self.unreadable = x, y, size, unreadable

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        if any(part.start <= sample < part.stop for sample in self.unreadable):
            raise OSError("the disk does not answer")
        return self.x[part], self.y[part]


rng = np.random.default_rng(181)
features = rng.standard_normal((32, 5))
unreadable = {21}
waves = Waves(features, np.sin(features[:, :1]), BATCH, unreadable)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
failures = []
try:
    model.fit(waves, epochs=2, shuffle=False, verbose=0)
except Exception as error:
    failures.append(error)
assert len(failures) == 1
unreadable.clear()
history = model.fit(waves, epochs=2, shuffle=False, verbose=0)
