# A residual network with group normalization and momentum.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


def block(x, filters, stride):
    shortcut = layers.Conv2D(filters, 1, strides=stride)(x)
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.Activation("relu")(layers.GroupNormalization(2)(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.Activation("relu")(layers.add([layers.GroupNormalization(2)(x), shortcut]))


rng = np.random.default_rng(2)
images = rng.uniform(0, 1, (32, 8, 8, 3))
labels = keras.utils.to_categorical(rng.integers(0, 4, 32), 4)
held_out = images[:10] + 0.1, labels[:10]

inputs = keras.Input((8, 8, 3))
x = block(inputs, 4, 2)
outputs = layers.Dense(4)(layers.GlobalAveragePooling2D()(x))
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=["accuracy", "categorical_accuracy"],
)
history = model.fit(
    images,
    labels,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_data=held_out,
)
