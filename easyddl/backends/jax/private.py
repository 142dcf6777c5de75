"""Every private name of JAX that easyddl uses. JAX 0.5 to 0.10 have all of them."""


def backends_are_initialized():
    """Whether JAX has taken the machine's devices.

    Without it, easyddl could not warn that it was imported too late to share them among ranks.
    """
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def trace_of(x):
    """The trace that has made a symbolic array.

    Without it, an `allreduce` in a jitted function of the user's own would not find what the ranks
    registered for that function.
    """
    return x._trace


def current_trace():
    """The trace that is active at this point of the code.

    Without it, the weight of a batch could be used outside of the function that computes it, which
    is an error in JAX (a leaked tracer).
    """
    from jax._src import core

    return core.trace_ctx.trace
