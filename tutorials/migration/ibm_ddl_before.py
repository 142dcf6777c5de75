"""Trains a classifier of scikit-learn's digits with IBM DDL and TensorFlow 1.15.

    ddlrun -H host1,host2 python ibm_ddl_before.py

ibm_ddl_after.py is its translation. ../from_ibm_ddl.md explains it.
"""

import ddl
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

BATCH, RATE = 16, 0.01

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
)
x_train = np.array_split(x_train, ddl.size())[ddl.rank()]
y_train = np.array_split(y_train, ddl.size())[ddl.rank()]

model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="relu", input_shape=(64,)),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = tf.train.MomentumOptimizer(RATE * ddl.size(), momentum=0.9)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [ddl.DDLCallback()]
if ddl.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("last.h5"))
callbacks.append(ddl.DDLGlobalVariablesCallback())
verbose = 2 if ddl.rank() == 0 else 0
model.fit(x_train, y_train, batch_size=BATCH, epochs=10, verbose=verbose, callbacks=callbacks)

if ddl.rank() == 0:
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy: {accuracy:.4f}")
