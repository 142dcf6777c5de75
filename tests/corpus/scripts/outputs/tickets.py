# Tickets have a title, words and tags, and get a priority and a department.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(92)
title = rng.integers(0, 12, (32, 4))
words = rng.integers(0, 12, (32, 6))
tags = rng.integers(0, 2, (32, 3)).astype("float64")
priority = rng.uniform(0, 1, (32, 1)).round()
department = np.eye(4)[rng.integers(0, 4, 32)]

title_in = keras.Input((4,), name="title", dtype="int32")
words_in = keras.Input((6,), name="words", dtype="int32")
tags_in = keras.Input((3,), name="tags")
x = layers.concatenate(
    [
        layers.GRU(4)(layers.Embedding(12, 3)(title_in)),
        layers.GRU(4)(layers.Embedding(12, 3)(words_in)),
        tags_in,
    ]
)
outputs = {
    "priority": layers.Dense(1, name="priority")(x),
    "department": layers.Dense(4, name="department")(x),
}
model = keras.Model([title_in, words_in, tags_in], outputs)
model.compile(
    keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)
history = model.fit(
    {"title": title, "words": words, "tags": tags},
    {"priority": priority, "department": department},
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
)
