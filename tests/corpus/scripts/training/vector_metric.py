# A metric with a number for each class.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(144)
x = rng.standard_normal((32, 5))
labels = np.eye(3)[x[:, :3].argmax(1)]

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(3, "softmax")])
model.compile(
    keras.optimizers.Adam(0.05),
    "categorical_crossentropy",
    metrics=[keras.metrics.F1Score(average=None), keras.metrics.F1Score(average="macro", name="m")],
)
history = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
