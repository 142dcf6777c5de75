# Small molecules, each with its own adjacency matrix, get a number each.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
ATOMS = 5

rng = np.random.default_rng(62)
kinds = np.eye(3)[rng.integers(0, 3, (32, ATOMS))]
bonds = np.triu(rng.integers(0, 2, (32, ATOMS, ATOMS)), 1)
bonds = (bonds + bonds.transpose(0, 2, 1)).astype("float64")
solubility = bonds.sum((1, 2)) / 10


class GraphConvolution(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.dense = layers.Dense(width)

    def call(self, states, adjacency):
        looped = adjacency + ops.eye(ATOMS, dtype=adjacency.dtype)
        degrees = ops.sum(looped, axis=-1, keepdims=True)
        return ops.relu(self.dense(ops.matmul(looped / degrees, states)))


atoms_in = keras.Input((ATOMS, 3))
bonds_in = keras.Input((ATOMS, ATOMS))
x = GraphConvolution(6)(atoms_in, bonds_in)
x = GraphConvolution(6)(x, bonds_in)
outputs = layers.Dense(1)(layers.GlobalAveragePooling1D()(x))
model = keras.Model([atoms_in, bonds_in], outputs)
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
history = model.fit(
    [kinds, bonds], solubility, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
