"""What is written beside an adapted classifier."""

from types import SimpleNamespace

import numpy as np

from neural_similarity.adapt.deliver import _confusion_title


def test_the_title_of_the_matrix_is_what_the_matrix_shows():
    validation = SimpleNamespace(
        confusion=np.array([[30, 1], [0, 17]]), tested=48, accuracy=0.993, interval=(0.961, 1.0)
    )
    assert _confusion_title(validation) == (
        "48 images, cross-validated: 97.9% correct\n"
        "estimated on new images: 99.3% (95% interval 96.1% – 100.0%)"
    )
