# Each sample has a weight of its own, some of them none.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(49)
x = rng.standard_normal((32, 4))
y = x @ rng.standard_normal((4, 2))
weights = rng.uniform(0, 2, 32) * (rng.uniform(0, 1, 32) > 0.3)

model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="selu"), layers.Dense(2)])
model.compile(
    keras.optimizers.SGD(0.05),
    "mse",
    metrics=["mae"],
    weighted_metrics=["mae", "cosine_similarity"],
)
history = model.fit(
    x, y, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
