# Embeddings trained by Adam, many of whose words no batch has.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS = 60

rng = np.random.default_rng(22)
texts = rng.integers(0, WORDS, (32, 5))
labels = texts[:, 0] % 3

model = keras.Sequential(
    [
        keras.Input((5,), dtype="int32"),
        layers.Embedding(WORDS, 4),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
