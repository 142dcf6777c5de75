"""The script that README.md and the guides call train.py. It takes a second on one rank."""

# ruff: noqa: I001 - a script imports easyddl first

import argparse

import easyddl as ddl  # 1
import keras
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Train a classifier of scikit-learn's digits.")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
x_train, y_train = images[:256], labels[:256]
x_test, y_test = images[-256:], labels[-256:]
x_train, y_train = ddl.split_data(x_train, y_train)  # 2

model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10, activation="softmax")])
optimizer = keras.optimizers.SGD(ddl.scale_lr(0.01))  # 3
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
mine = [keras.callbacks.TerminateOnNaN()]
history = model.fit(
    x_train,
    y_train,
    batch_size=16,
    epochs=args.epochs,
    verbose=2,
    callbacks=[ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()],  # 4
)
assert np.all(np.diff(history.history["loss"]) < 0), history.history
