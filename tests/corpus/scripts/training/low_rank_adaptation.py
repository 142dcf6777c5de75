# A dense layer and an embedding are frozen but for changes of low rank.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(138)
tokens = rng.integers(0, 8, (32, 4))
labels = rng.integers(0, 3, 32)

embedding, dense = layers.Embedding(8, 4), layers.Dense(6, activation="relu")
model = keras.Sequential(
    [keras.Input((4,), dtype="int32"), embedding, layers.Flatten(), dense, layers.Dense(3)]
)
embedding.enable_lora(2)
dense.enable_lora(2)
model.compile(
    keras.optimizers.SGD(0.2),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(tokens, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
