"""Trains with small batches, and with batches 16 times as large, at the same learning rate.

    python tutorials/plain/large_batches.py --plot large_batches.png

Large batches take a sixteenth of the steps, and at the rate of small batches they learn less in
the same number of epochs. ../large_batches.py is this script plus the four lines of easyddl. There
large batches use 16 times the rate, with and without warmup.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH, FACTOR = 8, 16  # size of the small batch, and the ratio of large to small
RATE = 0.006  # suits the small batch
SETTINGS = {  # batch sizes, as multiples of BATCH
    "small batches": 1,
    "large batches, no warmup": FACTOR,
}

parser = argparse.ArgumentParser(description="Train with small batches and with large ones.")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--first-seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--plot", metavar="FILE.png", help="draw a picture (needs matplotlib)")
args = parser.parse_args()
if args.plot:
    import matplotlib.figure

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
)
whole = len(x_train) // (BATCH * FACTOR) * BATCH * FACTOR  # so that all batches are full
x_train, y_train = x_train[:whole], y_train[:whole]


def train(name, seed):
    """Trains a model, and returns it with its training error in percent by epoch."""
    keras.utils.set_random_seed(seed)
    factor = SETTINGS[name]
    batch = BATCH * factor
    steps = whole // batch  # per epoch
    falls = [args.epochs * steps // 2, args.epochs * steps * 4 // 5]
    rate = keras.optimizers.schedules.PiecewiseConstantDecay(falls, [RATE, RATE / 10, RATE / 100])
    # Initial weights twice as large as usual make the first steps of a small network as sensitive
    # as those of a large one.
    start = keras.initializers.VarianceScaling(scale=4 * 2, distribution="uniform")
    sizes = [(64, "relu"), (64, "relu"), (64, "relu"), (10, "softmax")]
    layers = [keras.layers.Dense(*size, kernel_initializer=start) for size in sizes]
    model = keras.Sequential([keras.layers.Input((64,)), *layers])
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=10,
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch,
        epochs=args.epochs,
        verbose=0,
    )
    return model, 100 * (1 - np.array(history.history["accuracy"]))


def plot(errors, accuracies, path):
    """Draws the training errors: the mean over the seeds, and each seed as a faint line."""
    figure = matplotlib.figure.Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for color, (name, curves) in enumerate(errors.items()):
        label = f"{name}: {np.mean(accuracies[name]):.2f}% held-out accuracy"
        epochs = np.arange(1, args.epochs + 1)
        axes.plot(epochs, np.transpose(curves), f"C{color}", alpha=0.25, linewidth=0.8)
        axes.plot(epochs, np.mean(curves, axis=0), f"C{color}", label=label)
    axes.set(xlabel="epoch", ylabel="training error [%]", yscale="symlog", ylim=(0, 100))
    axes.legend()
    figure.savefig(path, dpi=150)


errors = {name: [] for name in SETTINGS}
accuracies = {name: [] for name in SETTINGS}
for name in SETTINGS:
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        model, error = train(name, seed)
        errors[name].append(error)
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)
        accuracies[name].append(100 * accuracy)
    found = " ".join(f"{accuracy:5.1f}" for accuracy in accuracies[name])
    deviation = np.std(accuracies[name], ddof=1) if args.seeds > 1 else 0
    print(f"{name:25} mean {np.mean(accuracies[name]):5.2f} +- {deviation:5.2f}  ({found})")

if args.plot:
    plot(errors, accuracies, args.plot)
