"""The seeds with which a dataset was shuffled before `split_data` received it."""

from easyddl.collectives import differences
from easyddl.runtime import world
from easyddl.steps import context

_CALLED = "split_data() of a shuffled dataset"

# Keras's functions such as `image_dataset_from_directory` draw a seed if they get none.
_SEEDS = differences.Subject(
    "The ranks shuffled a dataset, or drew random numbers in it, with different seeds, so that "
    "their shards would overlap. Pass the same `seed` on all ranks to "
    "`image_dataset_from_directory` and the like, to `shuffle`, or to tf.random.set_seed(). Or "
    "split the dataset before that step.",
    is_error=True,
)


@world.on_all_ranks(_CALLED, of_script=True)
def compared(find):
    """Returns the seeds of a dataset, equal on all ranks. Collective if there are any.

    Args:
        find: Function without arguments. It returns the list of this rank's seeds.

    Raises:
        ValueError: On all ranks, if their seeds differ.
    """
    with world.failing_alike(_CALLED):
        seeds = find()
    if seeds:
        with context.Call(_CALLED):
            _SEEDS.compare(differences.gather({"seeds": seeds})["seeds"])
    return seeds
