# A mean over the weights of the samples, which differ from batch to batch.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(140)
x = rng.standard_normal((32, 5))
y = x[:, :1]
weights = rng.uniform(0, 3, 32)

model = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
loss = keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight")
model.compile(keras.optimizers.SGD(0.05), loss, weighted_metrics=["mse"])
history = model.fit(
    x, y, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
