"""Divides the cores of a host among its ranks."""


def partition(masks, cores):
    """Shares out a host's cores among its ranks.

    Args:
        masks: List with, for each rank of the host, the sorted list of logical CPUs that it may
            use.
        cores: List of lists. The logical CPUs of each physical core of the host, in an order in
            which neighbours share caches.

    Returns:
        List with the sorted list of CPUs of each rank; `None` where the ranks must share cores,
        or where the launcher has given each rank cores of its own.
    """
    are_disjoint = len(set().union(*masks)) == sum(map(len, masks))
    if are_disjoint and len(masks) > 1:
        return None
    if any(mask != masks[0] for mask in masks):
        return None  # they overlap in part, so the intention is unknown
    allowed = set(masks[0])
    usable = [sorted(allowed.intersection(core)) for core in cores]
    usable = [core for core in usable if core]
    if len(usable) < len(masks):
        return None
    # As evenly as possible: of 10 cores, 4 ranks get 3, 2, 3 and 2.
    ends = [len(usable) * (i + 1) // len(masks) for i in range(len(masks))]
    begins = [0, *ends[:-1]]
    return [
        sorted(cpu for core in usable[begin:end] for cpu in core)
        for begin, end in zip(begins, ends, strict=True)
    ]
