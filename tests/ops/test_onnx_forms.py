"""The forms of the operation that the ONNX exporter writes, against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.fast_cases import CASES, DIAGONAL, FORMS, FULL, operands, same, settings
from torch import Tensor

from neural_similarity.ops.similarity_conv import onnx_forms, reference

FORMS_OF_CODE = [onnx_forms.by_kernels, onnx_forms.by_outputs, onnx_forms.by_rows]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", FORMS_OF_CODE, ids=lambda code: code.__name__)
def test_every_form(code: Callable[..., Tensor], form: str, shared: bool) -> None:
    tried = 0
    for case in CASES.values():
        ours, how = operands(case, form, shared), settings(case, form)
        same(
            onnx_forms.similarity_conv2d(*ours, *how),
            truth := reference.similarity_conv2d(*ours, *how),
            1e-12,
        )
        if serves(code, ours, how):
            tried += 1
            same(code(*ours, *how), truth, 1e-12)
    assert tried or code is onnx_forms.by_outputs  # which serves no matrices and groups


def serves(code: Callable[..., Tensor], ours: tuple[Tensor, ...], how: tuple) -> bool:
    stride, padding, dilation, groups, similarity_groups = how
    if code is onnx_forms.by_kernels:
        return True
    if code is onnx_forms.by_rows:
        return groups == 1
    reach = [(k - 1) * d for k, d in zip(ours[1].shape[2:], dilation, strict=True)]
    inside = all(far >= zeros for far, zeros in zip(reach, padding, strict=True))
    return (stride, groups, similarity_groups, ours[2].dim(), inside) == ((1, 1), 1, 1, 4, True)


@pytest.mark.parametrize(
    ("channels", "kernels", "stride", "form", "expected"),
    [
        (3, 32, 1, DIAGONAL, "by_kernels"),
        (32, 32, 1, DIAGONAL, "by_outputs"),
        (32, 64, 1, DIAGONAL, "by_rows"),
        (32, 32, 2, DIAGONAL, "by_rows"),
        (128, 128, 1, DIAGONAL, "by_rows"),
        (32, 32, 1, FULL, "by_rows"),
    ],
)
def test_the_form_follows_the_sizes(
    channels: int,
    kernels: int,
    stride: int,
    form: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = []
    for code in FORMS_OF_CODE:
        monkeypatch.setattr(
            onnx_forms, code.__name__, lambda *_, name=code.__name__: chosen.append(name)
        )
    input, weight = torch.empty(2, channels, 8, 8), torch.empty(kernels, channels, 3, 3)
    similarity = torch.empty(2, *([9] if form == DIAGONAL else [9, 9]), 8 // stride, 8 // stride)
    onnx_forms.similarity_conv2d(input, weight, similarity, (stride,) * 2, (1, 1), (1, 1), 1, 1)
    assert chosen == [expected]
