# Categories and numbers are encoded ahead, by layers that are called on all data.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(45)
heights = rng.normal(170, 10, 32)
kinds = rng.integers(10, 15, 32)
labels = (heights > 170) ^ (kinds > 12)

buckets = layers.Discretization(num_bins=4, output_mode="int")
buckets.adapt(heights)
bucket = keras.ops.convert_to_numpy(buckets(heights))
lookup = layers.IntegerLookup(vocabulary=[10, 11, 12, 13, 14], num_oov_indices=1)
kind = keras.ops.convert_to_numpy(lookup(kinds))
encode = layers.CategoryEncoding(10, output_mode="multi_hot")
features = keras.ops.convert_to_numpy(encode(np.stack([bucket, kind + 4], 1)))
labels = labels.astype("float64")

model = keras.Sequential([keras.Input((10,)), layers.Dense(6, activation="relu"), layers.Dense(1)])
model.compile(
    "adam",
    keras.losses.BinaryFocalCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)
history = model.fit(features, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
