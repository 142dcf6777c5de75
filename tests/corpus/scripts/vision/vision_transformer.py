# A transformer on patches of images, with learnt positions. One bias has no gradient but rounding.
# rtol: 2e-5
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WIDTH = 8


class Positions(layers.Layer):
    def __init__(self, count):
        super().__init__()
        self.embedding = layers.Embedding(count, WIDTH)
        self.count = count

    def call(self, patches):
        return patches + self.embedding(ops.arange(self.count))


rng = np.random.default_rng(5)
images = rng.standard_normal((32, 8, 8, 3))
labels = rng.integers(0, 3, 32)

inputs = keras.Input((8, 8, 3))
x = layers.Conv2D(WIDTH, 4, strides=4)(inputs)
x = Positions(4)(layers.Reshape((4, WIDTH))(x))
normed = layers.LayerNormalization(epsilon=1e-6)(x)
x = x + layers.MultiHeadAttention(2, 4)(normed, normed)
normed = layers.LayerNormalization(epsilon=1e-6)(x)
x = x + layers.Dense(WIDTH)(layers.Dense(16, activation="gelu")(normed))
outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))

model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-2),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
