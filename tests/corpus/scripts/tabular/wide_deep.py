# A linear model of crossed features beside a deep one, with an optimizer for both.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(41)
numbers = rng.standard_normal((32, 4))
codes = rng.integers(0, 5, (32, 2))
crossed = np.eye(25)[codes[:, 0] * 5 + codes[:, 1]]
labels = (numbers[:, 0] + codes[:, 0] > 2).astype("int64")

wide_in, deep_in = keras.Input((25,), name="crossed"), keras.Input((4,), name="numbers")
deep = layers.Dense(8, activation="relu")(deep_in)
deep = layers.Dense(4, activation="relu")(deep)
outputs = layers.Dense(1, activation="sigmoid")(layers.concatenate([wide_in, deep]))
model = keras.Model([wide_in, deep_in], outputs)
model.compile(
    keras.optimizers.Ftrl(0.1, l1_regularization_strength=1e-3),
    "binary_crossentropy",
    metrics=["accuracy", "precision", "recall"],
)
history = model.fit(
    [crossed, numbers], labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
