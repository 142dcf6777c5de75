# Patches of images, a learnt token for the class and learnt positions, trained by Adam. On JAX
# attention computes in float32.
# rtol: 2e-5
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WIDTH, PATCH, COUNT = 8, 4, 9


class Encoded(layers.Layer):
    def __init__(self):
        super().__init__()
        self.project = layers.Dense(WIDTH)
        self.kind = layers.Embedding(1, WIDTH)
        self.positions = layers.Embedding(COUNT + 1, WIDTH)

    def call(self, images):
        patches = ops.image.extract_patches(images, PATCH)
        patches = self.project(ops.reshape(patches, (-1, COUNT, PATCH * PATCH * 3)))
        first = ops.zeros_like(patches[:, :1]) + self.kind(ops.zeros((1,), "int32"))
        tokens = ops.concatenate([first, patches], axis=1)
        return tokens + self.positions(ops.arange(COUNT + 1))


rng = np.random.default_rng(187)
images = rng.uniform(0, 1, (32, 12, 12, 3))
labels = rng.integers(0, 3, 32)
images[labels == 1, :4] += 0.5

inputs = keras.Input((12, 12, 3))
x = Encoded()(inputs)
for _ in range(2):
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    # The gradient of a key's bias is zero, but for rounding, which Adam would enlarge.
    x = x + layers.MultiHeadAttention(2, 4, use_bias=False)(normed, normed)
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    x = x + layers.Dense(WIDTH)(layers.Dense(12, activation="gelu")(normed))
outputs = layers.Dense(3)(x[:, 0])

model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.01, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
