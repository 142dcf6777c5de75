# A pipeline of tf.data: batches, a map, prefetching and a validation set.
# backend: tensorflow jax
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(132)
x = rng.standard_normal((32, 5))
y = x.sum(1, keepdims=True)


def augment(features, target):
    return features * 0.5, target - 1


whole = tf.data.Dataset.from_tensor_slices((x, y))
train = whole.batch(BATCH).map(augment, num_parallel_calls=2).prefetch(2)
test = whole.take(10).map(augment).batch(5)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile("rmsprop", "mse", metrics=["mae"])
history = model.fit(train, epochs=2, verbose=0, validation_data=test)
