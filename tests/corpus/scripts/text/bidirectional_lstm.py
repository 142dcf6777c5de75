# A bidirectional LSTM that judges sequences of tokens.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(23)
texts = rng.integers(1, 15, (32, 6))
labels = (texts[:, 0] > texts[:, -1]).astype("int64")

inputs = keras.Input((6,), dtype="int32")
x = layers.Embedding(15, 4)(inputs)
x = layers.Bidirectional(layers.LSTM(4))(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
