"""A registered name belongs to one definition, in every registry."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import nn

import neural_similarity as ns
from neural_similarity import structures
from neural_similarity.data import DatasetInfo, dataset_info, register_dataset
from neural_similarity.data import registry as data_sets
from neural_similarity.fewshot import create_method
from neural_similarity.fewshot.methods import registry as methods
from neural_similarity.fewshot.methods.metric.proto import Proto
from neural_similarity.models import registry as models
from neural_similarity.nn.predictors import registry as predictors
from neural_similarity.structures import base


def structure(number):
    if number == 0:

        class First(structures.Diagonal):
            name: ClassVar[str] = "mine"

        return structures.register(First)

    class Second(structures.Diagonal):
        name: ClassVar[str] = "mine"

    return structures.register(Second)


def model(number):
    def first(**_):
        return nn.Identity()

    def second(**_):
        return nn.Identity()

    return ns.models.register_model("mine", (first, second)[number])


def data_set(number):
    def first(request):
        raise NotImplementedError

    def second(request):
        raise NotImplementedError

    info = DatasetInfo("mine", "classification", ("train",), f"number {number}")
    return register_dataset(info, (first, second)[number])


def method(number):
    if number == 0:

        @dataclass(frozen=True)
        class First(Proto):
            name: ClassVar[str] = "mine"

        return methods.register_method(First)

    @dataclass(frozen=True)
    class Second(Proto):
        name: ClassVar[str] = "mine"

    return methods.register_method(Second)


def predictor(number):
    @dataclass(frozen=True)
    class First(ns.ImagePredictor):
        kind: ClassVar[str] = "mine"

    @dataclass(frozen=True)
    class Second(ns.ImagePredictor):
        kind: ClassVar[str] = "mine"

    return predictors.register_predictor((First, Second)[number])


REGISTRIES = {
    "register": (base, structure),
    "register_model": (models, model),
    "register_dataset": (data_sets, data_set),
    "register_method": (methods, method),
    "register_predictor": (predictors, predictor),
}


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_name_in_use_is_refused_and_the_same_definition_is_not(name, monkeypatch):
    module, register = REGISTRIES[name]
    monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))
    register(0)
    register(0)  # as when a notebook cell is run again
    before = dict(module._REGISTRY)
    message = (
        rf"^{name}: expected a name that is not in use, got 'mine' for .*[sS]econd\. It belongs to "
        r".*[fF]irst\. Choose another name\.$"
    )
    with pytest.raises(ns.DuplicateNameError, match=message):
        register(1)
    assert before == module._REGISTRY
    assert issubclass(ns.DuplicateNameError, ValueError)


def test_what_comes_with_the_library_cannot_be_replaced():
    with pytest.raises(ns.DuplicateNameError, match="'digits'"):
        register_dataset(DatasetInfo("digits", "classification", ("train",), "Mine."), data_set)
    assert dataset_info("digits").splits == ("train", "test")

    class Mine(Proto):
        pass

    with pytest.raises(ns.DuplicateNameError, match="'proto'"):
        methods.register_method(Mine)
    assert type(create_method("proto")) is Proto
