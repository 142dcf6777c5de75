"""Trains a classifier of handwritten digits in a few seconds.

    python tutorials/plain/digits.py

The data set comes with scikit-learn: 1797 real images of 8 by 8 pixels. A quarter of them is held
out. ../digits.py is this script plus the four lines of easyddl, for one process or many.
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser(description="Train a classifier of scikit-learn's digits.")
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(
    images, labels, test_size=0.25, stratify=labels, random_state=0
)

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=16,
    epochs=args.epochs,
    verbose=2,
)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"Held-out accuracy: {accuracy:.4f}")
