# A recurrent network that learns which character comes next.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8

text = "a rose is a rose is a rose is a rose and so it goes "
letters = sorted(set(text))
codes = np.array([letters.index(letter) for letter in text])
windows = np.stack([codes[i : i + 7] for i in range(32)])
x, y = windows[:, :-1], windows[:, 1:]

model = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        layers.Lambda(lambda codes: ops.one_hot(codes, len(letters), dtype="float64")),
        layers.SimpleRNN(8, return_sequences=True),
        layers.TimeDistributed(layers.Dense(len(letters), activation="softmax")),
    ]
)
model.compile(
    keras.optimizers.RMSprop(0.02, momentum=0.5),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", "sparse_categorical_crossentropy"],
)
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
