# An encoder and a decoder with attention that turn sequences around.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH, WIDTH = 9, 5, 6

rng = np.random.default_rng(26)
source = rng.integers(1, WORDS, (32, LENGTH))
target = source[:, ::-1].copy()
shifted = np.concatenate([np.zeros((32, 1), int), target[:, :-1]], 1)

encoder_in = keras.Input((LENGTH,), dtype="int32", name="source")
decoder_in = keras.Input((LENGTH,), dtype="int32", name="shifted")
encoded, state = layers.GRU(WIDTH, return_sequences=True, return_state=True)(
    layers.Embedding(WORDS, WIDTH)(encoder_in)
)
decoded = layers.GRU(WIDTH, return_sequences=True)(
    layers.Embedding(WORDS, WIDTH)(decoder_in), initial_state=state
)
context = layers.Attention()([decoded, encoded])
outputs = layers.Dense(WORDS)(layers.concatenate([decoded, context]))
model = keras.Model([encoder_in, decoder_in], outputs)
model.compile(
    keras.optimizers.SGD(0.3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    {"source": source, "shifted": shifted},
    target,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
)
