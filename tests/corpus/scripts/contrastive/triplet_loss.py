# Triplets are embedded, and a loss of its own keeps apart what differs.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


def triplet(_, embedded):
    anchor, positive, negative = embedded[:, 0], embedded[:, 1], embedded[:, 2]
    near = ops.sum(ops.square(anchor - positive), axis=-1)
    far = ops.sum(ops.square(anchor - negative), axis=-1)
    return ops.maximum(near - far + 1.0, 0.0)


rng = np.random.default_rng(72)
anchors = rng.standard_normal((32, 1, 6))
triplets = np.concatenate(
    [anchors, anchors + 0.1 * rng.standard_normal((32, 1, 6)), rng.standard_normal((32, 1, 6))], 1
)
unused = np.zeros((32, 1))

embed = keras.Sequential(
    [layers.Dense(8, activation="relu"), layers.Dense(3), layers.UnitNormalization()]
)
inputs = keras.Input((3, 6))
model = keras.Model(inputs, layers.TimeDistributed(embed)(inputs))
model.compile(keras.optimizers.Adam(0.01), triplet)
history = model.fit(triplets, unused, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
