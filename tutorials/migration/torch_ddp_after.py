"""Trains a classifier of scikit-learn's digits with easyddl and Keras 3 on PyTorch.

    KERAS_BACKEND=torch mpirun -np 2 python torch_ddp_after.py

This is the translation of torch_ddp_before.py. ../from_torch_ddp.md explains it.
"""

import easyddl as ddl
import keras
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, RATE = 16, 0.01

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = map(
    torch.as_tensor,
    train_test_split(
        images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
    ),
)
dataset = TensorDataset(x_train, y_train)
loader = ddl.split_data(DataLoader(dataset, batch_size=BATCH, shuffle=True))

network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = keras.Sequential([keras.layers.Input((64,)), keras.layers.TorchModuleWrapper(network)])
optimizer = keras.optimizers.SGD(ddl.scale_lr(RATE), momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
model.fit(loader, epochs=10, verbose=2, callbacks=callbacks)

if ddl.is_root():
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy: {accuracy:.4f}")
