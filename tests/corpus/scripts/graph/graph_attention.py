# Nodes attend to their neighbours; attention is normalized by segment.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8
NODES = 32

rng = np.random.default_rng(63)
features = rng.standard_normal((NODES, 4))
edges = np.concatenate(
    [rng.integers(0, NODES, (60, 2)), np.repeat(np.arange(NODES), 2).reshape(-1, 2)]
)
labels = rng.integers(0, 3, NODES)
nodes = np.arange(NODES)


class GraphAttention(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 5), initializer="glorot_uniform")
        self.score = self.add_weight(shape=(10, 1), initializer="glorot_uniform")

    def call(self, states):
        states = ops.matmul(states, self.kernel)
        pairs = ops.concatenate(
            [ops.take(states, edges[:, 0], axis=0), ops.take(states, edges[:, 1], axis=0)], axis=1
        )
        scores = ops.exp(ops.clip(ops.leaky_relu(ops.matmul(pairs, self.score)), -2, 2))
        ids = ops.convert_to_tensor(edges[:, 0])
        total = ops.segment_sum(scores, ids, num_segments=NODES)
        shares = scores / ops.take(total, ids, axis=0)
        heard = shares * ops.take(states, edges[:, 1], axis=0)
        return ops.segment_sum(heard, ids, num_segments=NODES)


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.attention = GraphAttention()
        self.classify = layers.Dense(3)

    def call(self, indices):
        states = ops.elu(self.attention(ops.convert_to_tensor(features)))
        return self.classify(ops.take(states, indices, axis=0))


model = Network()
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(nodes, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
