# A conditional GAN whose optimizers lie in a dict, on PyTorch.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(2)])
        self.built = True

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def call(self, inputs):
        noise, kind = inputs
        return self.maker(torch.cat([noise, kind], 1))

    def update(self, name, loss):
        self.zero_grad()
        loss.backward()
        variables = getattr(self, name).trainable_weights
        with torch.no_grad():
            self.optimizers[name].apply([v.value.grad for v in variables], variables)
        return loss.detach()

    def train_step(self, data):
        (real, noise, kind), _ = data
        fake = self((noise, kind))
        real_score = self.critic(torch.cat([real, kind], 1))
        fake_score = self.critic(torch.cat([fake.detach(), kind], 1))
        critic = self.update("critic", ((real_score - 1) ** 2 + fake_score**2).mean())
        fake_score = self.critic(torch.cat([self((noise, kind)), kind], 1))
        maker = self.update("maker", ((fake_score - 1) ** 2).mean())
        return {"critic": critic, "maker": maker}


rng = np.random.default_rng(102)
kinds = np.eye(2)[np.arange(32) % 3 // 2]
points = kinds * 2 + 0.2 * rng.standard_normal((32, 2))
noises = rng.standard_normal((32, 3))
unused = np.zeros(32)

model = Gan()
model.compile({"critic": keras.optimizers.Adam(0.02), "maker": keras.optimizers.SGD(0.1)})
history = model.fit(
    (points, noises, kinds), unused, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
