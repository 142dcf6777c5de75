"""Ranks without Keras, whose import takes each process seconds. To be imported before easyddl."""

import importlib.util
import sys
import types

if "easyddl" not in sys.modules:
    package = types.ModuleType("easyddl")
    package.__path__ = importlib.util.find_spec("easyddl").submodule_search_locations
    sys.modules["easyddl"] = package

    from easyddl.runtime import job_exit, world

    package.init = world.init
    job_exit.install()
