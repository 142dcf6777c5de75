# Random flips, turns and brightness before a convolutional network.
# compare: replicas
import keras
import numpy as np
from keras import layers

BATCH = 8

rng = np.random.default_rng(6)
images = rng.uniform(0, 1, (32, 8, 8, 3)).astype("float32")
labels = rng.integers(0, 2, 32)

model = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.1),
        layers.RandomTranslation(0.1, 0.1),
        layers.RandomContrast(0.2),
        layers.Conv2D(4, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(2),
    ]
)
model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(images, labels, batch_size=BATCH, epochs=2, verbose=0)
