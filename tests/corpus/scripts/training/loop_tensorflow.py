# A training loop from scratch: a gradient tape in a compiled step, words, and a falling rate.
# backend: tensorflow
# optimizer: distributed
# before_fit: ddl.broadcast_variables(model.weights)
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH = 20, 5


class Positions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(LENGTH, 4)

    def call(self, x):
        return x + self.embedding(keras.ops.arange(LENGTH))


rng = np.random.default_rng(171)
texts = rng.integers(0, WORDS, (32, LENGTH))
labels = texts[:, 0] % 3
x_test = rng.integers(0, WORDS, (16, LENGTH))
labels_test = x_test[:, 0] % 3

inputs = keras.Input((LENGTH,), dtype="int32")
words = layers.Embedding(WORDS, 4)(inputs)
features = layers.Flatten()(Positions()(words))
model = keras.Model(inputs, layers.Dense(3)(layers.Dense(6, "tanh")(features)))

rate = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=3, decay_rate=0.8)
optimizer = keras.optimizers.Adam(rate)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
    return loss


history = {"accuracy": []}
for _ in range(3):
    for start in range(0, len(texts), BATCH):
        train_step(texts[start : start + BATCH], labels[start : start + BATCH])
    accuracy.reset_state()
    accuracy.update_state(labels_test, model(x_test, training=False))
    history["accuracy"].append(float(accuracy.result()))
