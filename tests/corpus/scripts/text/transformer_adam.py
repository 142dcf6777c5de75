# A transformer classifies texts. Adam trains its embeddings of tokens, positions and their kind.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH, WIDTH = 12, 6, 4


class Embedded(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)
        self.kinds = layers.Embedding(2, WIDTH)

    def call(self, tokens):
        length = ops.shape(tokens)[-1]
        x = self.tokens(tokens) + self.positions(ops.arange(length))
        return x + self.kinds(ops.zeros((1,), "int32"))


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        # The gradient of a key's bias is zero, but for rounding, which Adam would enlarge.
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False)
        self.dense = [layers.Dense(8, activation="relu"), layers.Dense(WIDTH)]
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.dense[1](self.dense[0](x)))


rng = np.random.default_rng(35)
texts = rng.integers(0, WORDS, (32, LENGTH))
labels = (texts[:, 0] > texts[:, -1]).astype("int64")

model = keras.Sequential(
    [
        keras.Input((LENGTH,), dtype="int32"),
        Embedded(),
        Block(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
