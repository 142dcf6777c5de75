# Rare cases, as in fraud, weigh more by class_weight.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(48)
x = rng.standard_normal((32, 5))
labels = (np.arange(32) % 7 == 0).astype("int64")
x[labels == 1] += 1

model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(6, activation="relu"), layers.Dense(1, activation="sigmoid")]
)
model.compile(
    keras.optimizers.Adam(0.02),
    "binary_crossentropy",
    metrics=[
        keras.metrics.FalseNegatives(),
        keras.metrics.TruePositives(),
        keras.metrics.AUC(curve="PR", num_thresholds=20),
        keras.metrics.PrecisionAtRecall(0.5, num_thresholds=20),
    ],
)
history = model.fit(
    x,
    labels,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    class_weight={0: 0.5, 1: 4.0},
)
