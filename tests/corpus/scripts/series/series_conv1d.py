# Classifies series of measurements by convolutions over time.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(31)
labels = rng.integers(0, 2, 32)
times = np.arange(16) / 16
series = np.sin(2 * np.pi * (1 + 2 * labels[:, None]) * times + rng.uniform(0, 6, (32, 1)))
series = series[..., None] + 0.1 * rng.standard_normal((32, 16, 1))

model = keras.Sequential([keras.Input((16, 1))])
for _ in range(2):
    model.add(layers.Conv1D(4, 3, padding="same"))
    model.add(layers.LayerNormalization())
    model.add(layers.ReLU())
model.add(layers.GlobalAveragePooling1D())
model.add(layers.Dense(2, activation="softmax"))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
history = model.fit(
    series, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, validation_split=0.25
)
