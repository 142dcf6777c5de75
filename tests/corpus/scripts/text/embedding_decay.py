# Weights decay, also those of words that no batch has; their averages replace them now and then.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
WORDS, LENGTH = 30, 6


class Triangle(keras.optimizers.schedules.LearningRateSchedule):
    """Rises and falls, over and over."""

    def __call__(self, step):
        step = keras.ops.cast(step, "float64")
        return 0.01 + 0.01 * keras.ops.abs(keras.ops.mod(step, 4.0) - 2.0)

    def get_config(self):
        return {}


class Positions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(LENGTH, 4)

    def call(self, x):
        return x + self.embedding(keras.ops.arange(LENGTH))


rng = np.random.default_rng(186)
texts = rng.integers(0, WORDS - 5, (32, LENGTH))
y = np.cos(texts.mean(1, keepdims=True))

inputs = keras.Input((LENGTH,), dtype="int32")
words = layers.Embedding(WORDS, 4)(inputs)
x = layers.LayerNormalization()(Positions()(words))
x = layers.GlobalAveragePooling1D()(layers.Dense(6, "tanh")(x))
model = keras.Model(inputs, layers.Dense(1)(x))

optimizer = keras.optimizers.AdamW(
    Triangle(), weight_decay=0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5
)
optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
model.compile(optimizer, "mse", metrics=["mae"])
history = model.fit(texts, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
