# Validation samples that are held out at random, without a seed.
# backend: tensorflow jax
# compare: replicas
# refused: with different contents
# before_fit: samples, held_out = parts(seed=7)
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(150)
x = rng.standard_normal((48, 5))
y = (x.sum(1, keepdims=True) > 0).astype("int64")
whole = tf.data.Dataset.from_tensor_slices((x, y))


def parts(seed=None):
    pair = keras.utils.split_dataset(whole, 0.75, shuffle=True, seed=seed)
    return [part.batch(BATCH) for part in pair]


samples, held_out = parts()

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
history = model.fit(samples, epochs=2, verbose=0, validation_data=held_out)
