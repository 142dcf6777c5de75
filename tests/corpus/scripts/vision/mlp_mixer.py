# Dense layers that mix patches and channels in turn.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Mixer(layers.Layer):
    def build(self, shape):
        patches, width = shape[1:]
        self.between = keras.Sequential([layers.Dense(8, activation="gelu"), layers.Dense(patches)])
        self.within = keras.Sequential([layers.Dense(8, activation="gelu"), layers.Dense(width)])
        self.norm = layers.LayerNormalization()
        self.between.build((None, width, patches))
        self.within.build((None, patches, width))
        self.norm.build(shape)

    def call(self, x):
        swapped = keras.ops.transpose(self.norm(x), (0, 2, 1))
        x = x + keras.ops.transpose(self.between(swapped), (0, 2, 1))
        return x + self.within(x)


rng = np.random.default_rng(15)
images = rng.standard_normal((32, 6, 6, 2))
labels = rng.integers(0, 3, 32)

model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        layers.Conv2D(6, 2, strides=2),
        layers.Reshape((9, 6)),
        Mixer(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Lamb(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
