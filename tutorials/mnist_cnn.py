"""Trains Keras's own example of a convolutional network on MNIST, in one process or in many.

    python tutorials/mnist_cnn.py
    mpirun -np 4 python tutorials/mnist_cnn.py

This is the plain Keras script plain/mnist_cnn.py with the four lines of easyddl, marked 1 to 4. It
downloads MNIST once, into Keras's cache. If the download fails, it trains on scikit-learn's digits,
scaled up to MNIST's 28 by 28 pixels, and prints a message. Rank 0 alone loads the data, and sends
them to all ranks, so that all ranks use the same data.
"""

import argparse
import socket

import easyddl as ddl  # 1
import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data():
    """Loads MNIST from the cache or the network, or else scikit-learn's digits."""
    socket.setdefaulttimeout(10)  # seconds, so that a network without an answer cannot block
    try:
        data = keras.datasets.mnist.load_data()
    except Exception as problem:  # Keras has no more specific exception for a failed download
        print(f"MNIST is not available: {problem}")
        print("Training on scikit-learn's digits, scaled up to 28x28, instead of MNIST.")
        return load_large_digits()
    finally:
        socket.setdefaulttimeout(None)
    print("Training on MNIST.")
    return data


def load_large_digits():
    """Enlarges scikit-learn's 8x8 images to MNIST's size: each pixel 3 by 3, and a margin of 2."""
    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8) / 16 * 255, np.ones((3, 3)))
    images = np.pad(images, [(0, 0), (2, 2), (2, 2)])
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.25, stratify=labels, random_state=0
    )
    return (x_train, y_train), (x_test, y_test)


parser = argparse.ArgumentParser(description="Train Keras's convolutional network on MNIST.")
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

data = None  # rank
if ddl.is_root():  # rank
    data = load_data()
data = ddl.broadcast_object(data)  # rank
(x_train, y_train), (x_test, y_test) = data
x_train = np.expand_dims(x_train.astype("float32") / 255, -1)
x_test = np.expand_dims(x_test.astype("float32") / 255, -1)
x_train, y_train = ddl.split_data(x_train, y_train)  # 2

model = keras.Sequential(
    [
        keras.layers.Input((28, 28, 1)),
        keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.Adam(ddl.scale_lr(0.001, rule="sqrt"))  # 3
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=128,
    epochs=args.epochs,
    validation_split=0.1,
    verbose=2,
    callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],  # 4
)

if ddl.is_root():  # rank
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy with {ddl.size()} rank(s): {accuracy:.4f}")
