# Words hidden in sentences are guessed; weights by token leave the others out.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS, HIDDEN = 12, 11

rng = np.random.default_rng(25)
texts = np.cumsum(rng.integers(1, 3, (32, 6)), 1) % (WORDS - 1)
hidden = np.zeros(texts.shape, bool)
hidden[np.arange(32), rng.integers(0, 3, 32)] = True
hidden[np.arange(32), rng.integers(3, 6, 32)] = True
given = np.where(hidden, HIDDEN, texts)
weights = hidden.astype("float64")

inputs = keras.Input((6,), dtype="int32")
x = layers.Embedding(WORDS, 6)(inputs)
x = x + layers.MultiHeadAttention(1, 6)(x, x)
x = layers.LayerNormalization()(x)
outputs = layers.Dense(WORDS, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.9),
    "sparse_categorical_crossentropy",
    weighted_metrics=["accuracy"],
)
history = model.fit(
    given, texts, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
