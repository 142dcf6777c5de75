# Samples are permuted and held out; their weights come from how often their class is seen.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(181)
x = rng.standard_normal((43, 4))
labels = np.digitize(x[:, 0], [-0.3, 1.0])

order = np.random.RandomState(42).permutation(len(x))
held_out, kept = order[:11], order[11:]
x_val, labels_val = x[held_out], labels[held_out]
x, labels = x[kept], labels[kept]

counts = np.bincount(labels, minlength=3)
balanced = len(labels) / (3 * counts)
class_weight = {number: float(weight) for number, weight in enumerate(balanced)}
sample_weight = balanced[labels]

model = keras.Sequential(
    [keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")],
)
model.compile(
    keras.optimizers.Nadam(0.02),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="balanced")],
)
by_class = model.fit(
    x,
    labels,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    class_weight=class_weight,
    validation_data=(x_val, labels_val),
)
by_sample = model.fit(
    x,
    labels,
    sample_weight=sample_weight,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_data=(x_val, labels_val, balanced[labels_val]),
)
history = [by_class, by_sample]
