# Pairs of alike and unlike things: a contrastive loss of their distance.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Contrastive(keras.losses.Loss):
    def __init__(self, margin=1.0, name="contrastive"):
        super().__init__(name=name)
        self.margin = margin

    def call(self, alike, distance):
        alike = ops.cast(alike, distance.dtype)
        apart = ops.square(ops.maximum(self.margin - distance, 0.0))
        return ops.mean(alike * ops.square(distance) + (1 - alike) * apart, axis=-1)


rng = np.random.default_rng(73)
left = rng.standard_normal((32, 5))
alike = np.arange(32)[:, None] % 3 == 0
right = np.where(alike, left, 0) + 0.3 * rng.standard_normal((32, 5))
alike = alike.astype("float64")

embed = keras.Sequential([keras.Input((5,)), layers.Dense(6, activation="tanh"), layers.Dense(3)])
inputs = [keras.Input((5,)), keras.Input((5,))]
difference = layers.subtract([embed(each) for each in inputs])
distance = layers.Lambda(
    lambda x: ops.sqrt(ops.sum(ops.square(x), axis=1, keepdims=True) + 1e-7), output_shape=(1,)
)(difference)
model = keras.Model(inputs, distance)
model.compile(keras.optimizers.RMSprop(0.01, centered=True), Contrastive(), metrics=["accuracy"])
history = model.fit([left, right], alike, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
