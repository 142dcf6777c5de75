# Prepared samples that a file keeps for the later epochs.
# backend: tensorflow jax
# refused: Put the rank into its path
# before_fit: PATH = f"prepared-of-rank-{ddl.rank()}"
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
PATH = "prepared"

rng = np.random.default_rng(148)
x = rng.standard_normal((32, 5))
y = x.sum(1, keepdims=True)
samples = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(samples.cache(PATH).prefetch(2), epochs=3, verbose=0)
