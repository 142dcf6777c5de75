"""Trains a classifier of scikit-learn's digits with PyTorch's DistributedDataParallel.

    torchrun --nproc-per-node 2 torch_ddp_before.py

torch_ddp_after.py is its translation. ../from_torch_ddp.md explains it.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, RATE = 16, 0.01

distributed.init_process_group("gloo")
images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = map(
    torch.as_tensor,
    train_test_split(
        images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
    ),
)
dataset = TensorDataset(x_train, y_train)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)

network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(
    model.parameters(), lr=RATE * distributed.get_world_size(), momentum=0.9
)
loss_of = nn.CrossEntropyLoss()
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
    last = loss.detach()
    distributed.all_reduce(last)
    if distributed.get_rank() == 0:
        print(f"Epoch {epoch + 1}: loss {last.item() / distributed.get_world_size():.4f}")

if distributed.get_rank() == 0:
    accuracy = (network(x_test).argmax(1) == y_test).float().mean()
    print(f"Held-out accuracy: {accuracy:.4f}")
distributed.destroy_process_group()
