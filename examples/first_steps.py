"""First steps: adapt a trained network to a changed task by learning nine parameters per layer.

A small network learns scikit-learn's digits. Then the task changes: the images are faint, with
three tenths of their contrast, and twenty of them are labelled. The network stays frozen. A
similarity in each convolution is trained, or the classifier, or both. At the end the similarity is
merged into the kernels: what remains is the same plain network with other weights.

A second change, mirrored images, shows the limit: nine gains per layer cannot mirror a kernel. A
whole matrix per layer can do so in part, and retraining the classifier does better.

Run: ``python examples/first_steps.py`` (under a minute on two cores).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import neural_similarity as ns

Recipe = Callable[[nn.Sequential], nn.Sequential]

SEED = 0
LABELLED = 20
CHANGES = {"faint": lambda images: 0.3 * images, "mirrored": lambda images: images.flip(-1)}


def main() -> None:
    torch.set_num_threads(1)  # the network is too small for threads to help
    torch.manual_seed(SEED)
    (train_x, train_y), (test_x, test_y) = digits()
    network = small_cnn()
    fit(network.train(), train_x, train_y, steps=300)
    network.eval()  # from here on BatchNorm keeps its statistics
    print(
        f"trained on {len(train_x)} digits; {accuracy(network, test_x, test_y):.1%} on new ones\n"
    )

    print(f"the task changes; {LABELLED} labelled images to adapt to it, the network frozen:")
    print(f"{'what is trained':<32}{'parameters':>10}" + "".join(f"{name:>10}" for name in CHANGES))
    for what, prepare in RECIPES.items():
        scores, adapted = [], network
        for change in CHANGES.values():
            adapted = prepare(copy.deepcopy(network))
            if what != "nothing":
                fit(adapted, change(train_x[:LABELLED]), train_y[:LABELLED], steps=200)
            scores.append(accuracy(adapted, change(test_x), test_y))
        parameters = 0 if what == "nothing" else ns.trainable_summary(adapted).trainable
        print(f"{what:<32}{parameters:>10,}" + "".join(f"{score:>10.1%}" for score in scores))

    print("\nagain, diagonal similarity on faint images, then merged:")
    model = RECIPES["diagonal similarity"](copy.deepcopy(network))
    fit(model, CHANGES["faint"](train_x[:LABELLED]), train_y[:LABELLED], steps=200)
    print(f"  {ns.trainable_summary(model)}")
    faint = CHANGES["faint"](test_x)
    before = model(faint)
    ns.merge(model)
    difference = ((model(faint) - before).abs().max() / before.abs().max()).item()
    print(f"  relative difference of the outputs before and after merging: {difference:.1e}")
    plain = small_cnn().eval()
    plain.load_state_dict(model.state_dict())
    score = accuracy(plain, faint, test_y)
    print(f"  the merged weights in a network built without this library: {score:.1%}")


def classifier_only(model: nn.Sequential) -> nn.Sequential:
    for parameter in model[:-1].parameters():
        parameter.requires_grad_(False)
    return model


def with_similarity(structure: str, also_train: list[str] | None) -> Recipe:
    def prepare(model: nn.Sequential) -> nn.Sequential:
        ns.attach(model, ns.StaticSimilarity(structure))
        ns.freeze_backbone(model, also_train=also_train)
        return model

    return prepare


RECIPES: dict[str, Recipe] = {
    "nothing": lambda model: model,
    "classifier": classifier_only,
    "diagonal similarity": with_similarity("diagonal", also_train=[]),
    "unconstrained similarity": with_similarity("unconstrained", also_train=[]),
    "classifier and diagonal": with_similarity("diagonal", also_train=None),
}


def small_cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, width in ((1, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images (N, 1, 8, 8) in [0, 1] and labels, for training and for testing."""
    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    labels = torch.from_numpy(data.target)
    split = train_test_split(images, labels, test_size=0.5, random_state=SEED, stratify=labels)
    train_x, test_x, train_y, test_y = split
    return (train_x, train_y), (test_x, test_y)


def fit(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trainable, lr=0.01)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    training = model.training
    correct = (model.eval()(images).argmax(1) == labels).float().mean().item()
    model.train(training)
    return correct


if __name__ == "__main__":
    main()
