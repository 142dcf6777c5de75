# Pairs of categories are hashed together, and a linear model weighs them.
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(46)
days = rng.integers(0, 7, 32)
hours = rng.integers(0, 24, 32)
busy = ((days < 5) & (hours > 7)).astype("float64")

cross = layers.HashedCrossing(num_bins=16, output_mode="one_hot")
crossed = np.asarray(cross((tf.constant(days), tf.constant(hours))), "float64")

model = keras.Sequential([keras.Input((16,)), layers.Dense(1, activation="sigmoid")])
model.compile("adagrad", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(crossed, busy, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
