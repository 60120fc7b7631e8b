"""Which classes of CIFAR-100 are for training, validation and test in few-shot learning.

``CIFAR_FS``: drawn at random by Bertinetto, Henriques, Torr and Vedaldi, "Meta-learning with
differentiable closed-form solvers", ICLR 2019. ``FC100``: whole superclasses by Oreshkin, Rodríguez
López and Lacoste, "TADAM", NeurIPS 2018, so that test classes are further from training classes.
"""

from __future__ import annotations

__all__ = ["CIFAR_FS", "FC100"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.split()))


CIFAR_FS = {
    "train": _words(
        """
        apple aquarium_fish bear bee bottle bowl boy bridge bus can castle caterpillar chair
        clock cloud cockroach couch cup dinosaur dolphin elephant forest girl hamster house
        kangaroo keyboard lawn_mower lion lizard lobster mountain mouse mushroom oak_tree orange
        orchid palm_tree pear pine_tree plate porcupine possum rabbit raccoon ray road seal
        shrew skunk skyscraper snake spider squirrel streetcar sunflower tank tiger train trout
        tulip turtle willow_tree wolf
        """
    ),
    "val": _words(
        """
        beaver beetle butterfly camel cattle crab crocodile flatfish lamp maple_tree motorcycle
        otter sea shark television tractor
        """
    ),
    "test": _words(
        """
        baby bed bicycle chimpanzee fox leopard man pickup_truck plain poppy rocket rose snail
        sweet_pepper table telephone wardrobe whale woman worm
        """
    ),
}

FC100 = {
    "train": _words(
        """
        apple aquarium_fish bed bicycle bottle bowl bridge bus can castle chair clock cloud
        couch crocodile cup dinosaur flatfish forest house keyboard lamp lawn_mower lizard
        maple_tree motorcycle mountain mushroom oak_tree orange orchid palm_tree pear
        pickup_truck pine_tree plain plate poppy ray road rocket rose sea shark skyscraper snake
        streetcar sunflower sweet_pepper table tank telephone television tractor train trout
        tulip turtle wardrobe willow_tree
        """
    ),
    "val": _words(
        """
        bear camel cattle chimpanzee crab elephant hamster kangaroo leopard lion lobster mouse
        rabbit shrew snail spider squirrel tiger wolf worm
        """
    ),
    "test": _words(
        """
        baby beaver bee beetle boy butterfly caterpillar cockroach dolphin fox girl man otter
        porcupine possum raccoon seal skunk whale woman
        """
    ),
}
