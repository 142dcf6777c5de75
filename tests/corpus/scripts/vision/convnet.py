# A small convolutional network that tells three kinds of images apart.
import keras
import numpy as np

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(1)
images = rng.standard_normal((32, 8, 8, 1))
labels = rng.integers(0, 3, 32)
images[np.arange(32), labels, labels, 0] += 3

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(6, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
