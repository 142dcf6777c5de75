# A decoder that predicts each next token, with causal attention and tied embeddings.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH, WIDTH = 10, 6, 8


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2)
        self.norm = layers.RMSNormalization()

    def call(self, tokens):
        x = self.tokens(tokens) + self.positions(ops.arange(LENGTH))
        x = x + self.attention(x, x, use_causal_mask=True)
        return ops.matmul(self.norm(x), ops.transpose(self.tokens.embeddings))


rng = np.random.default_rng(30)
tokens = np.cumsum(rng.integers(0, 3, (32, LENGTH + 1)), 1) % WORDS
given, following = tokens[:, :-1], tokens[:, 1:]

model = Decoder()
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(given, following, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
