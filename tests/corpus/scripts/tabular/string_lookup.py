# Strings, numbers in buckets and hashes of codes become features.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(44)
colours = rng.choice(["red", "green", "blue"], 32)
ages = rng.uniform(0, 90, 32)
codes = rng.integers(0, 10_000, 32)
labels = (ages > 40).astype("int64")

lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(colours)
buckets = layers.Discretization(num_bins=4, output_mode="one_hot")
buckets.adapt(ages)
hashing = layers.Hashing(num_bins=5, output_mode="one_hot")

features = [("colour", "string", lookup), ("age", "float32", buckets), ("code", "int64", hashing)]


def featurize(row, label):
    parts = [layer(tf.reshape(row[name], (-1, 1))) for name, _, layer in features]
    return tf.concat([tf.cast(part, "float64") for part in parts], 1), label


rows = {"colour": colours, "age": ages.astype("float32"), "code": codes}
dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(BATCH).map(featurize)

model = keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=2, verbose=0)
