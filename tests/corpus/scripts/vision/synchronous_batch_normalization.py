# Batch normalization, whose batch is that of all ranks, in float64. The moments travel as float32.
# batch_norm: sync
# rtol: 1e-5
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(9)
images = rng.standard_normal((32, 6, 6, 2))
labels = rng.integers(0, 3, 32)

inputs = keras.Input((6, 6, 2))
x = layers.Conv2D(4, 3)(inputs)
x = keras.layers.BatchNormalization(momentum=0.9)(x)
x = layers.ReLU()(x)
x = layers.Conv2D(4, 3)(x)
x = keras.layers.BatchNormalization(momentum=0.9)(x)
outputs = layers.Dense(3, activation="softmax")(layers.Flatten()(x))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
