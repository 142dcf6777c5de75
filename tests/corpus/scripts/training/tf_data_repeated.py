# An endless pipeline, of which an epoch takes some steps.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
STEPS = 3

rng = np.random.default_rng(133)
x = rng.standard_normal((32, 5))
y = x.max(1, keepdims=True)
train = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(train, epochs=2, steps_per_epoch=STEPS, verbose=0)
