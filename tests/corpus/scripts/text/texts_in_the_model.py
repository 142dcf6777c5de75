# Texts are what the model takes: its first layers look up their words, and their authors.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(183)
words = np.array(["rain", "sun", "wind", "snow", "fog", "hail"])
picked = rng.integers(0, 6, (40, 3))
texts = tf.constant([" ".join(row) for row in words[picked]])
authors = tf.constant(rng.choice(["ann", "bob", "eve"], 40).tolist())
labels = (picked[:, :1] > picked[:, 1:2]).astype("float64")

vectorize = layers.TextVectorization(output_mode="tf_idf")
vectorize.adapt(texts)
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(authors)

text = keras.Input((), dtype="string", name="text")
author = keras.Input((1,), dtype="string", name="author")
x = layers.concatenate([vectorize(text), lookup(author)])
outputs = layers.Dense(1, "sigmoid")(layers.Dense(6, "tanh")(x))
model = keras.Model({"text": text, "author": author}, outputs)
model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    {"text": texts, "author": authors},
    labels,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_split=0.2,
)
