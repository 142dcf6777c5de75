# A tag for each word of sentences of different lengths; padding is masked, also in the loss.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
LENGTH = 7

rng = np.random.default_rng(28)
words = rng.integers(1, 10, (32, LENGTH))
words[np.arange(LENGTH) >= np.tile([3, 7, 7, 3], 8)[:, None]] = 0
tags = words % 3

inputs = keras.Input((LENGTH,), dtype="int32")
x = layers.Embedding(10, 4, mask_zero=True)(inputs)
x = layers.LSTM(5, return_sequences=True)(x)
outputs = layers.Dense(3, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.SGD(0.3), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
)
history = model.fit(words, tags, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
