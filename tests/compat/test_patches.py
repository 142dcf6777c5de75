"""Replacements of attributes, and how they are undone."""

import types

import keras
import pytest

from easyddl.compat import patches


class Owner:
    def hook(self):
        return "class's"


def module():
    made = types.ModuleType("made")
    made.hook = lambda: "module's"
    return made


def test_an_instance_gets_its_class_attribute_back():
    owner = Owner()
    undo = patches.replace(owner, "hook", lambda: "mine")
    assert owner.hook() == "mine" and Owner().hook() == "class's"
    undo()
    assert owner.hook() == "class's" and not vars(owner)


def test_an_instance_gets_its_own_attribute_back():
    owner = Owner()
    owner.hook = lambda: "own"
    with patches.replaced(owner, "hook", lambda: "mine"):
        assert owner.hook() == "mine"
    assert owner.hook() == "own"


def test_several_are_undone_in_reverse_order():
    owner = Owner()
    undo = [patches.replace(owner, "hook", lambda i=i: i) for i in range(3)]
    found = [owner.hook()]
    for each in reversed(undo):
        each()
        found.append(owner.hook())
    assert found == [2, 1, 0, "class's"]


def test_a_subclass_loses_what_it_did_not_have():
    class Inner(Owner):
        pass

    undo = patches.replace(Inner, "hook", lambda self: "mine")
    assert Inner().hook() == "mine" and Owner().hook() == "class's"
    undo()
    assert Inner().hook() == "class's" and "hook" not in vars(Inner)


def test_an_interrupted_context_is_undone_once():
    owner = module()
    interrupted = patches.replaced(owner, "hook", lambda: "left")
    interrupted.__enter__()
    patches.undo_left()
    found = [owner.hook()]
    with patches.replaced(owner, "hook", lambda: "mine"):
        del interrupted
        found.append(owner.hook())
    assert found == ["module's", "mine"] and owner.hook() == "module's"


def test_what_an_interrupt_leaves_is_undone_unless_it_lasts():
    owner, lasting = Owner(), Owner()
    patches.replace_all(owner, {"hook": 1})
    patches.replace(owner, "hook", 2)
    patches.add(owner, "new", 3)
    patches.replace(lasting, "hook", 4, lasts=True)
    patches.undo_left()
    assert owner.hook() == "class's" and not vars(owner) and lasting.hook == 4


def test_a_module_gets_its_function_back_after_an_error():
    owner = module()
    with pytest.raises(KeyError), patches.replaced(owner, "hook", lambda: "mine"):
        assert owner.hook() == "mine"
        raise KeyError
    assert owner.hook() == "module's"


@pytest.mark.parametrize("owner", [Owner(), Owner, module()])
def test_what_nobody_calls_is_not_replaced(owner):
    with pytest.raises(AttributeError, match="_gone"):
        patches.replace(owner, "_gone", None)
    with pytest.raises(AttributeError, match="_gone"):
        patches.replace_all(owner, {"hook": None, "_gone": None})
    assert getattr(owner, "hook", None) is not None and not hasattr(owner, "_gone")


def test_all_of_several_are_undone():
    owner = Owner()
    owner.other = 1
    undo = patches.replace_all(owner, {"hook": 2, "other": 3})
    assert (owner.hook, owner.other) == (2, 3)
    undo()
    assert owner.hook() == "class's" and owner.other == 1


def test_what_is_added_goes_again_and_may_be_gone_already():
    owner = Owner()
    undo = patches.add(owner, "new", 1)
    assert owner.new == 1
    undo()
    assert not hasattr(owner, "new")
    undo()


def test_keras_does_not_track_it():
    layer = keras.layers.Dense(1)
    losses = []
    undo = patches.replace(layer, "_losses_override", losses)
    assert layer._losses_override is losses  # Keras would copy the list
    undo()
    inner = keras.layers.Dense(1)
    patches.add(layer, "inner", inner)
    assert inner not in layer._layers


def test_a_function_is_installed_once():
    class Inner(Owner):
        pass

    calls = []

    def wrap(original):
        calls.append(original)
        return lambda self: f"around {original(self)}"

    for _ in range(2):
        patches.install(Inner, "hook", wrap)
    assert Inner().hook() == "around class's" and len(calls) == 1
