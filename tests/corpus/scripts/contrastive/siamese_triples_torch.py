# A siamese network takes triples whole, in a train_step with PyTorch's backward.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(71)
anchors = rng.standard_normal((32, 6))
positives = anchors + 0.1 * rng.standard_normal((32, 6))
negatives = rng.standard_normal((32, 6))
triples = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(*map(torch.from_numpy, (anchors, positives, negatives))),
    batch_size=BATCH,
)


class Siamese(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, triple):
        anchor, positive, negative = [self.embed(part) for part in triple]
        near = (anchor - positive).square().sum(1)
        return near, (anchor - negative).square().sum(1)

    def train_step(self, data):
        self.zero_grad()
        near, far = self(data, training=True)
        loss = torch.relu(near - far + 0.5).mean()
        loss.backward()
        variables = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


model = Siamese()
model([anchors[:1], positives[:1], negatives[:1]])
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(triples, epochs=2, verbose=0)
