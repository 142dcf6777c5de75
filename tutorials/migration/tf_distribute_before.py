"""Trains a classifier of scikit-learn's digits with MultiWorkerMirroredStrategy and Keras 2.

    TF_CONFIG='{"cluster": {"worker": ["host1:2345", "host2:2345"]},
                "task": {"type": "worker", "index": 0}}' python tf_distribute_before.py

This line starts the worker on host1. The worker on host2 has the index 1.

tf_distribute_after.py is its translation. ../from_tf_distribute.md explains it.
"""

import json
import os

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
BATCH = 16 * strategy.num_replicas_in_sync
RATE = 0.01 * strategy.num_replicas_in_sync

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
dataset = dataset.shuffle(len(x_train)).batch(BATCH)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [keras.callbacks.BackupAndRestore("backup")]
verbose = 2 if is_chief else 0
model.fit(dataset, epochs=10, verbose=verbose, callbacks=callbacks)

# All workers must save, because saving aggregates variables. The chief's file counts.
model.save("model.keras" if is_chief else "model_of_another_worker.keras")
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
if is_chief:
    print(f"Held-out accuracy: {accuracy:.4f}")
