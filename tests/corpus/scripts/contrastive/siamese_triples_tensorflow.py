# A siamese network takes triples whole, in a train_step with a gradient tape.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(71)
anchors = rng.standard_normal((32, 6))
positives = anchors + 0.1 * rng.standard_normal((32, 6))
negatives = rng.standard_normal((32, 6))
triples = tf.data.Dataset.from_tensor_slices((anchors, positives, negatives)).batch(BATCH)


class Siamese(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, triple):
        anchor, positive, negative = [self.embed(part) for part in triple]
        near = tf.reduce_sum(tf.square(anchor - positive), axis=1)
        far = tf.reduce_sum(tf.square(anchor - negative), axis=1)
        return near, far

    def train_step(self, data):
        with tf.GradientTape() as tape:
            near, far = self(data, training=True)
            loss = tf.reduce_mean(tf.maximum(near - far + 0.5, 0.0))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


model = Siamese()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(triples, epochs=2, verbose=0)
