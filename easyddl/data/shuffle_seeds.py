"""The seeds with which a dataset was shuffled before `split_data` received it."""

from easyddl.collectives import differences
from easyddl.steps import context

# Keras's functions such as `image_dataset_from_directory` draw a seed if they get none.
_SEEDS = differences.Subject(
    "The ranks shuffled a dataset, or drew random numbers in it, with different seeds, so that "
    "their shards would overlap. Pass the same `seed` on all ranks to "
    "`image_dataset_from_directory` and the like, to `shuffle`, or to tf.random.set_seed(). Or "
    "split the dataset before that step.",
    is_error=True,
)


def compare(seeds):
    """Raises a `ValueError` on all ranks if their seeds differ. Collective if there are any.

    Args:
        seeds: List of the seeds of a dataset.
    """
    if seeds:
        with context.Call("split_data() of a shuffled dataset"):
            _SEEDS.compare(differences.gather({"seeds": seeds})["seeds"])
