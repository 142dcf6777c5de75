# One transformer block on tokens, padded with zeros that a mask hides.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
LENGTH = 6


class TokenAndPosition(layers.Layer):
    def __init__(self, words, width):
        super().__init__()
        self.tokens = layers.Embedding(words, width, mask_zero=True)
        self.positions = layers.Embedding(LENGTH, width)

    def call(self, tokens):
        return self.tokens(tokens) + self.positions(ops.arange(LENGTH))

    def compute_mask(self, tokens, mask=None):
        return self.tokens.compute_mask(tokens)


rng = np.random.default_rng(24)
texts = rng.integers(1, 12, (32, LENGTH))
texts[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, (32, 1))] = 0
labels = (texts == 3).any(1).astype("int64")

inputs = keras.Input((LENGTH,), dtype="int32")
x = TokenAndPosition(12, 4)(inputs)
x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
x = layers.LayerNormalization()(x + layers.Dense(4)(layers.Dense(8, activation="relu")(x)))
x = layers.GlobalAveragePooling1D()(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
