# A student's train_step asks its teacher, with PyTorch's backward.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Distiller(keras.Model):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher, self.student = teacher, student

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        x, y = data
        with torch.no_grad():
            opinion = self.teacher(x, training=False)
        self.zero_grad()
        answer = self.student(x, training=True)
        hard = self.compute_loss(x, y, answer)
        soft = (torch.softmax(opinion, 1) - torch.softmax(answer, 1)).square().mean()
        (0.5 * hard + 0.5 * soft).backward()
        variables = self.student.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return {**self.compute_metrics(x, y, answer), "soft": soft.detach()}


rng = np.random.default_rng(82)
x = rng.standard_normal((32, 6))
labels = x[:, :3].argmax(1)

teacher = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
teacher.set_weights([5 * np.eye(6, 3), np.zeros(3)])
student = keras.Sequential([keras.Input((6,)), layers.Dense(4, "relu"), layers.Dense(3)])
model = Distiller(teacher, student)
model.build((None, 6))
model.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
