"""Trains a classifier of scikit-learn's digits with Horovod and Keras 2.

    horovodrun -np 2 python horovod_before.py

horovod_after.py is its translation. ../from_horovod.md explains it.
"""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

BATCH, RATE = 16, 0.01

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
dataset = dataset.shard(hvd.size(), hvd.rank())
dataset = dataset.shuffle(len(x_train)).batch(BATCH).repeat()
steps = len(x_train) // BATCH // hvd.size()

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
rate = RATE * hvd.size()
optimizer = keras.optimizers.SGD(rate, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("last.keras"))
verbose = 2 if hvd.rank() == 0 else 0
model.fit(dataset, epochs=10, steps_per_epoch=steps, verbose=verbose, callbacks=callbacks)

if hvd.rank() == 0:
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy: {accuracy:.4f}")
