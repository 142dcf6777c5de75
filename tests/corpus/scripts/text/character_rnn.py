# A recurrent network that learns which character comes next.
# backend: tensorflow torch
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

text = "a rose is a rose is a rose is a rose and so it goes "
letters = sorted(set(text))
codes = np.array([letters.index(letter) for letter in text])
windows = np.stack([codes[i : i + 7] for i in range(32)])
x, y = np.eye(len(letters))[windows[:, :-1]], windows[:, 1:]

model = keras.Sequential(
    [
        keras.Input((6, len(letters))),
        layers.SimpleRNN(8, return_sequences=True),
        layers.Dense(len(letters), activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.RMSprop(0.02, momentum=0.5),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", "sparse_categorical_crossentropy"],
)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
