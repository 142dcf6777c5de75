"""The optimizers to which an optimizer passes its gradients."""

import keras


def inner_optimizers(optimizer):
    """Returns the optimizers that an optimizer holds, and those that they hold.

    They are attributes, or in lists of attributes, as that of a `LossScaleOptimizer` is.

    Args:
        optimizer: A Keras optimizer.
    """
    found = {id(optimizer): optimizer}
    remaining = [optimizer]
    while remaining:
        for value in vars(remaining.pop()).values():
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, keras.optimizers.Optimizer) and id(each) not in found:
                    found[id(each)] = each
                    remaining.append(each)
    return list(found.values())[1:]
