# Nodes of one graph are classified: messages along edges, summed by segment_sum.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
NODES = 32

rng = np.random.default_rng(61)
features = rng.standard_normal((NODES, 4))
sources, targets = rng.integers(0, NODES, (2, 80))
labels = (features[:, 0] > 0).astype("int64")
nodes = np.arange(NODES)


class MessagePassing(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.message = layers.Dense(width, activation="relu")
        self.update = layers.Dense(width, activation="tanh")

    def call(self, states):
        messages = self.message(ops.take(states, sources, axis=0))
        gathered = ops.segment_sum(messages, ops.convert_to_tensor(targets), num_segments=NODES)
        return self.update(ops.concatenate([states, gathered], axis=1))


class NodeClassifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.passes = [MessagePassing(6), MessagePassing(6)]
        self.classify = layers.Dense(2)

    def call(self, indices):
        states = ops.convert_to_tensor(features)
        for layer in self.passes:
            states = layer(states)
        return self.classify(ops.take(states, indices, axis=0))


model = NodeClassifier()
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(nodes, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
