# A random choice of the samples, whose seed nobody has set.
# backend: tensorflow jax
# compare: replicas
# refused: set the same seeds on all ranks
# before_fit: keras.utils.set_random_seed(3); samples = chosen()
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(149)
x = rng.standard_normal((48, 5))
y = x.sum(1, keepdims=True)


def chosen():
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    return whole.filter(lambda *sample: tf.random.uniform(()) < 0.8).batch(BATCH)


samples = chosen()

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(samples, epochs=1, verbose=0)
