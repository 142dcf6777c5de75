# Boxes and classes are found together, each with a sample weight of its own.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


def smooth_l1(y, predicted):
    size = ops.abs(y - predicted)
    return ops.sum(ops.where(size < 1, ops.square(size) / 2, size - 0.5), axis=-1)


rng = np.random.default_rng(94)
images = rng.standard_normal((32, 8, 8, 1))
boxes = rng.uniform(0, 1, (32, 4))
classes = rng.integers(0, 3, 32)
images[np.arange(32), classes, :, 0] += 2
there = (np.arange(32) % 4 != 0).astype("float64")
all_count = np.ones(32)

inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(4, 3, strides=2, activation="relu")(inputs)
x = layers.Flatten()(x)
outputs = {
    "box": layers.Dense(4, activation="sigmoid", name="box")(x),
    "kind": layers.Dense(3, activation="softmax", name="kind")(x),
}
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.01),
    {"box": smooth_l1, "kind": "sparse_categorical_crossentropy"},
    loss_weights={"box": 2.0, "kind": 1.0},
    weighted_metrics={"box": ["mae"], "kind": ["accuracy"]},
)
history = model.fit(
    images,
    {"box": boxes, "kind": classes},
    sample_weight={"box": there, "kind": all_count},
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
)
