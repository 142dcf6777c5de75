"""Every private name of JAX that easyddl uses. JAX 0.5 to 0.10 have all of them."""


def backends_are_initialized():
    """Returns whether JAX has initialized the host's devices.

    Without it, easyddl could not warn that it was imported too late to divide them among ranks.
    """
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def keep_with_executable(context, owner):
    """Keeps an object alive as long as the function that is being compiled.

    Without it, a compiled function that outlives its jaxpr would use a closed registration.

    Args:
        context: The context of a lowering rule.
        owner: Object or `None`.
    """
    if owner is not None:
        context.module_context.add_keepalive(owner)


def trace_of(x):
    """Returns the trace that created a symbolic array.

    Without it, an `allreduce` in a jitted function of the user would not find the registration of
    that function.
    """
    return x._trace


def current_trace():
    """Returns the trace that is active at this point of the code.

    Without it, the weight of a batch could be used outside of the function that computes it. JAX
    reports that as a leaked tracer.
    """
    from jax._src import core

    return core.trace_ctx.trace
