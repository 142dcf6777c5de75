# Two batches make one update of a model that normalizes numbers, and looks up those in buckets.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(177)
heights = rng.normal(170, 10, (32, 3))
ages = rng.uniform(0, 90, (32, 1))
y = (heights[:, :1] - 170) / 10 + (ages > 40)

normalize = layers.Normalization()
normalize.adapt(heights)
buckets = layers.Discretization(num_bins=5)
buckets.adapt(ages)

height = keras.Input((3,), name="height")
age = keras.Input((1,), name="age")
bucket = layers.Flatten()(layers.Embedding(5, 3)(buckets(age)))
x = layers.Concatenate()([normalize(height), bucket])
model = keras.Model([height, age], layers.Dense(1)(layers.Dense(6, "tanh")(x)))
model.compile(keras.optimizers.Adam(0.02, gradient_accumulation_steps=2), "mse", metrics=["mae"])
history = model.fit([heights, ages], y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
