# One table has words and positions, another one the numbers of two tasks; Adam trains both.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH, WIDTH = 12, 5, 4


class Multitask(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(WORDS + LENGTH, WIDTH)
        self.tasks = layers.Embedding(3, WIDTH)
        self.mix = layers.Dense(8, activation="tanh")
        self.heads = {"first": layers.Dense(3), "order": layers.Dense(1)}

    def call(self, tokens):
        x = self.table(tokens) + self.table(WORDS + ops.arange(LENGTH))
        outputs = {}
        for number, (name, head) in enumerate(self.heads.items()):
            task = self.tasks(ops.full((1,), number))
            mixed = self.mix(ops.tanh(x) * (1 + task))
            outputs[name] = head(ops.reshape(mixed, (-1, LENGTH * 8)))
        return outputs


rng = np.random.default_rng(185)
tokens = rng.integers(0, WORDS, (32, LENGTH))
first = tokens[:, 0] % 3
order = (tokens[:, :1] > tokens[:, -1:]).astype("float64")

model = Multitask()
model.compile(
    keras.optimizers.Adam(0.02),
    {
        "first": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "order": keras.losses.BinaryCrossentropy(from_logits=True),
    },
    loss_weights={"first": 1.0, "order": 0.5},
    metrics={"first": ["accuracy"]},
)
history = model.fit(
    tokens,
    {"first": first, "order": order},
    batch_size=BATCH,
    epochs=3,
    shuffle=False,
    verbose=0,
)
