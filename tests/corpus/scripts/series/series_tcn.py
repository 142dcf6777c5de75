# A temporal convolutional network: causal, dilated, with gates and residuals.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(34)
series = rng.standard_normal((32, 12, 2))
echoes = np.roll(series[..., :1], 3, axis=1) * 0.5

inputs = keras.Input((12, 2))
x = layers.Conv1D(4, 1)(inputs)
for dilation in (1, 3):
    filtered = layers.Conv1D(4, 2, padding="causal", dilation_rate=dilation, activation="tanh")(x)
    gate = layers.Conv1D(4, 2, padding="causal", dilation_rate=dilation, activation="sigmoid")(x)
    x = layers.add([x, layers.multiply([filtered, gate])])
outputs = layers.Conv1D(1, 1)(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
history = model.fit(series, echoes, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
