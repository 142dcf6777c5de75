"""Trains a classifier of scikit-learn's digits with easyddl and Keras 3.

    mpirun -np 2 python horovod_after.py

This is the translation of horovod_before.py. ../from_horovod.md explains it.
"""

import easyddl as ddl
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

BATCH, RATE = 16, 0.01

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
dataset = ddl.split_data(dataset)
dataset = dataset.shuffle(len(x_train)).batch(BATCH)

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    ddl.DDLCallback(),
    ddl.LearningRateWarmupCallback(RATE, warmup_epochs=3),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2),
    keras.callbacks.ModelCheckpoint("last.keras"),
    ddl.DDLGlobalVariablesCallback(),
]
model.fit(dataset, epochs=10, verbose=2, callbacks=callbacks)

if ddl.is_root():
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy: {accuracy:.4f}")
