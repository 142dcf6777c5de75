"""Splits generators and other iterators, whose length is unknown."""

import itertools


def split(iterator, shard):
    """Returns a generator of this rank's elements of an iterator."""
    shard.refuse_shuffle(
        "`split_data` cannot shuffle the elements of an iterator. Shuffle them before you split "
        "them, in the same order on all ranks."
    )
    # Return a generator, because Keras accepts no other iterators.
    return sharded(iterator, shard)


def sharded(iterator, shard):
    """Yields the `rank`-th of every `size` elements.

    Before the generator yields an element, it draws the elements of all ranks, which are a round.
    So if all ranks must get the same number of elements, it yields none of an incomplete round.
    Whenever the generator is suspended, the iterator is between two rounds.

    Args:
        iterator: An iterable, the same on all ranks.
        shard: The `Shard` of this rank.
    """
    iterator = iter(iterator)
    while True:
        drawn = 0
        for element in itertools.islice(iterator, shard.size):
            if drawn == shard.rank:
                mine = element
            drawn += 1
        if drawn < shard.size and (shard.is_equal or drawn <= shard.rank):
            return
        yield mine
