# A bag of words: embeddings, their mean, and a dense layer, with momentum.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS = 20

rng = np.random.default_rng(21)
texts = rng.integers(0, WORDS, (32, 7))
labels = (texts.mean(1) > WORDS / 2).astype("float64")

model = keras.Sequential(
    [
        keras.Input((7,), dtype="int32"),
        layers.Embedding(WORDS, 4),
        layers.GlobalAveragePooling1D(),
        layers.Dense(6, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
