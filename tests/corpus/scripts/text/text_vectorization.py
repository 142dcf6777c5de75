# Sentences become numbers by a vocabulary that is adapted to all of them.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(27)
good, bad = ["fine", "great", "lovely"], ["dull", "awful", "slow"]
labels = rng.integers(0, 2, 32)
sentences = [
    "the film was " + " and ".join(rng.choice(good if label else bad, 2)) for label in labels
]

vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
vectorize.adapt(sentences)
dataset = tf.data.Dataset.from_tensor_slices((sentences, labels)).batch(BATCH)
dataset = dataset.map(lambda text, label: (vectorize(text), label))

model = keras.Sequential(
    [
        layers.Embedding(vectorize.vocabulary_size(), 4),
        layers.GlobalMaxPooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=2, verbose=0)
