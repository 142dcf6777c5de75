# A small forest of soft decision trees.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
DEPTH = 2


class Tree(layers.Layer):
    def build(self, shape):
        leaves = 2**DEPTH
        self.chosen = np.arange(shape[-1]) % 2 == 0
        self.decide = layers.Dense(leaves, activation="sigmoid")
        self.decide.build((None, int(self.chosen.sum())))
        self.values = self.add_weight(shape=(leaves, 3), initializer="random_normal")

    def call(self, x):
        decisions = self.decide(x[:, self.chosen.nonzero()[0][0] :: 2])
        reach = ops.ones_like(decisions[:, :1])
        for level in range(DEPTH):
            here = decisions[:, 2**level : 2 ** (level + 1)]
            reach = ops.reshape(
                ops.stack([reach * here, reach * (1 - here)], axis=-1), (-1, 2 ** (level + 1))
            )
        return ops.matmul(reach, ops.softmax(self.values))


rng = np.random.default_rng(50)
x = rng.standard_normal((32, 6))
labels = rng.integers(0, 3, 32)

inputs = keras.Input((6,))
outputs = layers.average([Tree()(inputs) for _ in range(2)])
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
