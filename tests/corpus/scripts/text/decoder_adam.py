# A decoder with learnt positions and Adam, trained on long texts and then on shorter ones. On JAX
# attention computes in float32.
# rtol: 2e-5
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH, WIDTH = 10, 7, 8


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)
        # The gradient of a key's bias is zero, but for rounding, which Adam would enlarge.
        self.attention = [layers.MultiHeadAttention(2, 4, use_bias=False) for _ in range(2)]
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.head = layers.Dense(WORDS)

    def call(self, tokens):
        positions = ops.arange(ops.shape(tokens)[1])[None]
        x = self.tokens(tokens) + self.positions(positions)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            normed = norm(x)
            x = x + attention(normed, normed, use_causal_mask=True)
        return self.head(x)


rng = np.random.default_rng(184)
tokens = np.cumsum(rng.integers(0, 3, (32, LENGTH + 1)), 1) % WORDS
given, following = tokens[:, :-1], tokens[:, 1:]
short, next_of_short = tokens[:, 2:6], tokens[:, 3:7]

model = Decoder()
model.compile(
    keras.optimizers.Adam(0.02),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = [
    model.fit(given, following, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
    model.fit(short, next_of_short, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
]
