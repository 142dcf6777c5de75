# Two views of each thing find each other in a batch, which on ranks is the rank's own.
# compare: replicas
# ddl_callback: scalar_losses="mean"
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 16


class Contrast(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(4)])
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="found")

    def call(self, views):
        return [ops.normalize(self.encoder(view), axis=1) for view in views]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        first, second = y_pred
        similar = ops.matmul(first, ops.transpose(second)) / 0.2
        partners = ops.arange(ops.shape(similar)[0])
        self.accuracy.update_state(partners, similar)
        return ops.mean(
            keras.losses.sparse_categorical_crossentropy(partners, similar, from_logits=True)
            + keras.losses.sparse_categorical_crossentropy(
                partners, ops.transpose(similar), from_logits=True
            )
        )


rng = np.random.default_rng(74)
things = rng.standard_normal((64, 6))
one = things + 0.2 * rng.standard_normal(things.shape)
other = things + 0.2 * rng.standard_normal(things.shape)

model = Contrast()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit([one, other], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
