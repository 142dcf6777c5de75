"""Searches for the hyper-parameters of a classifier with KerasTuner, in one process or in many.

    python tutorials/tune_with_keras_tuner.py
    mpirun -np 2 python tutorials/tune_with_keras_tuner.py --tuner Hyperband

The root alone has the tuner: it chooses the hyper-parameters of each trial, and writes the results
and the checkpoints. All ranks train each trial together. The ranks share each batch, so a trial of
many ranks trains like one process, and the search finds what one process would find.

This is the plain script plain/tune_with_keras_tuner.py with the four lines of easyddl, marked 1 to
4, and with lines for the ranks without a tuner, marked `rank`.
"""

import argparse

import easyddl as ddl  # 1
import keras
import keras_tuner
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 32  # the samples of all ranks in a step

parser = argparse.ArgumentParser(description="Search with KerasTuner.")
parser.add_argument("--tuner", choices=["RandomSearch", "Hyperband"], default="RandomSearch")
parser.add_argument("--trials", type=int, default=4, help="of RandomSearch")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--directory", default="search")
args = parser.parse_args()
if min(args.trials, args.epochs) < 1:
    parser.error("--trials and --epochs must be 1 or more")

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(
    images, labels, test_size=0.25, stratify=labels, random_state=0
)
held_out = x_train[-256:], y_train[-256:]  # to choose by
x_train, y_train = x_train[:1088], y_train[:1088]
batch_size = BATCH
batch_size //= ddl.size()  # rank
x_train, y_train = ddl.split_data(x_train, y_train)  # 2


class Classifier(keras_tuner.HyperModel):
    """What the tuner builds and trains."""

    def build(self, hp):
        keras.utils.set_random_seed(1)
        rate = hp.Float("rate", 0.003, 0.3, sampling="log")
        optimizer = keras.optimizers.SGD(
            ddl.scale_lr(rate, rule="none"),  # 3
            momentum=hp.Choice("momentum", [0.0, 0.9]),
        )
        units = hp.Int("units", 16, 64, step=16)
        layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(10, "softmax")]
        model = keras.Sequential([keras.layers.Input((64,)), *layers])
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def fit(self, hp, model, callbacks, **arguments):
        ddl.broadcast_object((hp.values, arguments))  # rank
        return train(model, callbacks, **arguments)


def train(model, callbacks, **arguments):
    """Trains the model of a trial, on all ranks."""
    callbacks = [ddl.DDLCallback(), *callbacks, ddl.DDLGlobalVariablesCallback()]  # 4
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        shuffle=False,
        validation_data=held_out,
        callbacks=callbacks,
        **arguments,
    )
    scores.append(max(history.history["val_accuracy"]))
    return history


scores = []
classifier = Classifier()
if ddl.is_root():  # rank
    limit = {"max_trials": args.trials}
    if args.tuner == "Hyperband":
        limit = {"max_epochs": args.epochs}
    tuner = getattr(keras_tuner, args.tuner)(
        classifier, objective="val_accuracy", seed=1, directory=args.directory, **limit
    )
    tuner.search(epochs=args.epochs, verbose=0)
    for number, trial in sorted(tuner.oracle.trials.items()):
        values = trial.hyperparameters.values
        found = ", ".join(f"{name} {values[name]:.6g}" for name in ("rate", "momentum", "units"))
        score = "failed" if trial.score is None else f"{trial.score:.4f}"
        print(f"trial {number}: {found}: {score}")
    hp, model = tuner.get_best_hyperparameters()[0], tuner.get_best_models()[0]
    ddl.broadcast_object((hp.values, None))  # rank
else:  # rank
    while True:  # rank
        hp = keras_tuner.HyperParameters()  # rank
        hp.values, arguments = ddl.broadcast_object(None)  # rank
        keras.utils.clear_session()  # rank
        model = classifier.build(hp)  # rank
        if arguments is None:  # rank
            break  # rank
        train(model, [], **arguments)  # rank
ddl.broadcast_variables(model.weights)  # rank

if ddl.is_root():  # rank
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Held-out accuracy with {ddl.size()} rank(s): {accuracy:.4f}")
