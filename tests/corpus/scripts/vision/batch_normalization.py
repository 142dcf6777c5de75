# Batch normalization, whose batch is a rank's own.
# compare: replicas
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(8)
images = rng.standard_normal((32, 6, 6, 2))
labels = rng.integers(0, 3, 32)
held_out = images[:8] + 0.1, labels[:8]

model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    images,
    labels,
    batch_size=BATCH,
    epochs=2,
    verbose=0,
    validation_data=held_out,
)
