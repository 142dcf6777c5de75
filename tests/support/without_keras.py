"""The public collectives without Keras, whose import takes each process seconds.

To be imported before easyddl. The functions are those that `import easyddl` gives. Keras is a
stand-in that names a backend for which easyddl has no module, so they take NumPy arrays alone.
"""

import importlib.abc
import importlib.machinery
import sys
import types

import engine_only  # noqa: F401  (first)


class StandIn(types.ModuleType):
    """Has every attribute and every module below it, for modules to import and not to use."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class KerasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] != "keras":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        if module.__name__ == "keras":
            module.backend = types.SimpleNamespace(backend=lambda: "numpy")


def _install():
    sys.meta_path.insert(0, KerasFinder())
    import easyddl
    from easyddl.collectives import arrays, lending, objects, variables
    from easyddl.runtime import world

    public = {
        arrays: ("allgather", "allreduce", "alltoall", "broadcast", "reduce_scatter"),
        lending: ("collectives_in",),
        objects: ("allgather_object", "broadcast_object"),
        variables: ("broadcast_variables",),
        world: ("barrier", "is_root", "num_nodes", "rank", "size"),
    }
    for module, names in public.items():
        for name in names:
            setattr(easyddl, name, getattr(module, name))


if "keras" not in sys.modules:
    _install()
