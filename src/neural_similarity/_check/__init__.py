"""The only place that words errors about names, numbers and shapes.

Form: ``<where>: expected <what> <value>, got <value>. <why>. <what to do>.``
"""

from __future__ import annotations

from .convolutions import (
    conv_gradient,
    conv_operands,
    conv_output_shape,
    guide,
    image_batch,
    layer_input,
    pairs,
    shape,
    similarity_groups,
    similarity_shape,
    weight_similarity,
    window_positions,
)
from .maps import (
    attention_maps,
    attention_width,
    global_similarity,
    map_size,
    odd_kernel,
    size_preserving,
)
from .names import known_name, new_name, only_choices
from .numbers import (
    counts,
    divisor,
    is_whole,
    plain_number,
    positive_numbers,
    real_numbers,
    true_or_false,
    whole_numbers,
)

__all__ = [
    "attention_maps",
    "attention_width",
    "conv_gradient",
    "conv_operands",
    "conv_output_shape",
    "counts",
    "divisor",
    "global_similarity",
    "guide",
    "image_batch",
    "is_whole",
    "known_name",
    "layer_input",
    "map_size",
    "new_name",
    "odd_kernel",
    "only_choices",
    "pairs",
    "plain_number",
    "positive_numbers",
    "real_numbers",
    "shape",
    "similarity_groups",
    "similarity_shape",
    "size_preserving",
    "true_or_false",
    "weight_similarity",
    "whole_numbers",
    "window_positions",
]
