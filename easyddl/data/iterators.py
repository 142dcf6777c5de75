"""Generators and other iterators, of which nobody knows the length."""

import itertools


def split(iterator, part):
    """This rank's part of what an iterator yields, as a generator."""
    part.refuse_shuffle(
        "`split_data` cannot shuffle what an iterator yields. Shuffle it where it is made, on "
        "all ranks alike."
    )
    # Keras takes generators, and no other iterators.
    return dealt(iterator, part)


def dealt(iterator, part):
    """Yields the `rank`-th of every `size` elements.

    It draws for all ranks before it yields. So, where they are to get equally many, it yields
    none that another rank lacks; and the iterator stands between two rounds whenever it is left.
    """
    iterator = iter(iterator)
    while True:
        drawn = 0
        for element in itertools.islice(iterator, part.size):
            if drawn == part.rank:
                mine = element
            drawn += 1
        if drawn < part.size and (part.is_equal or drawn <= part.rank):
            return
        yield mine
