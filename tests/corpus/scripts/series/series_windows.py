# Windows of a long series come from Keras's own utility for them.
# backend: tensorflow
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(36)
series = np.cumsum(rng.standard_normal((60, 2)), 0)
windows = keras.utils.timeseries_dataset_from_array(
    series[:-1], series[8:, 0], sequence_length=8, sequence_stride=1, batch_size=BATCH, end_index=39
)

model = keras.Sequential(
    [keras.Input((8, 2)), layers.Flatten(), layers.Dense(6, "elu"), layers.Dense(1)]
)
model.compile(keras.optimizers.Adagrad(0.05), "mse")
history = model.fit(windows, epochs=2, verbose=0)
