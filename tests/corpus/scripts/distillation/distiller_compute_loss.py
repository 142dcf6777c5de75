# A small network learns from a large one's opinion, in compute_loss.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Distiller(keras.Model):
    def __init__(self, teacher, student, share=0.3, temperature=3.0):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.teacher.trainable = False
        self.share, self.temperature = share, temperature

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hard = super().compute_loss(x, y, y_pred, sample_weight)
        soft = keras.losses.kl_divergence(
            ops.softmax(self.teacher(x, training=False) / self.temperature),
            ops.softmax(y_pred / self.temperature),
        )
        return self.share * hard + (1 - self.share) * ops.mean(soft) * self.temperature**2


def network(width):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, activation="relu"), layers.Dense(3)]
    )


rng = np.random.default_rng(81)
x = rng.standard_normal((32, 6))
labels = x[:, :3].argmax(1)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher = network(12)
teacher.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
learnt = teacher.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

model = Distiller(teacher, network(4))
model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
taught = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
history = [learnt, taught]
