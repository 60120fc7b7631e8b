"""Dynamic similarity (Section 3.3): layers whose M is predicted from their input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import _check
from ..._shapes import pair
from ...errors import ShapeError
from ...structures import Block
from .._padding import explicit_padding
from ..layer_hooks import insist_on_calls
from ..layouts import features_in_block
from ..predictors import Window
from .at_once import conv2d_at_once
from .base import DynamicLayer, Sites
from .predicted import PredictedSimilarity
from .weighted import predicted_conv2d

__all__ = ["DynamicConv1d", "DynamicConv2d", "DynamicLSTMCell", "DynamicLayer", "DynamicLinear"]


class DynamicConv2d(DynamicLayer, nn.Conv2d):
    r"""``nn.Conv2d`` whose similarity is predicted from its input.

    This is the dynamic similarity of `Liu et al., 2019, Section 3.3
    <https://arxiv.org/abs/1910.13003>`_.

    .. math:: y_{n,o,l} = b_o
        + \sum_c \sum_i \sum_j W_{o,c,i} \, M_\theta(X)_{n,s(c),i,j,l} \, X_{n,c,j,l}

    with sample n, kernel o, output position l, input channel c in similarity group s(c), kernel tap
    i and patch tap j. The paper has one group. The constructor is :class:`torch.nn.Conv2d`'s, with
    four more keyword arguments.

    Args:
        structure: what M may be, by name or as an object. ``KernelShape(R)`` makes D static and
            predicts R (Section 3.5).
        predictor: what predicts M, and from what: :class:`SpherePredictor` (the default, the
            paper's, also called ``PatchPredictor``), :class:`ConvPredictor`,
            :class:`PixelPredictor`, :class:`ImagePredictor`, :class:`PairPredictor`, or any module
            ``(input, window) -> (N, parameters, P, Q)``, to whose output the identity is added; P
            and Q may be 1.
        over: ``"taps"`` (the paper): M is a diagonal or matrix of taps, S·K parameters for a
            diagonal. ``"channels"``: :math:`M_{s,i,i} = m_s`, S parameters. ``"both"``:
            :math:`M_{s,i,i} = a_s b_i`, K + S parameters, those of the taps first. ``"kernels"``:
            :math:`M_{o,s,i,i} = m_{o,s,i}`, O·S·K parameters, with all groups a dynamic filter
            network (Section 6). The last three need a diagonal.
        similarity_groups: S, how many groups of neighbouring channels have their own factors; None
            means 1 over taps, and every channel otherwise. Over kernels, they are groups of the
            channels that one kernel sees. More than one needs a diagonal.

    Cost: the convolution, its similarity (see
    :func:`~neural_similarity.ops.similarity_conv2d`), and the predictor. One M per image costs
    almost nothing: each image has its own kernels. Over kernels, an M at every position has O·S·K
    entries there, so it is for small layers.

    Example:
        >>> import neural_similarity as ns
        >>> conv = DynamicConv2d(4, 8, 3, padding=1, predictor=ns.SpherePredictor(hidden=16))
        >>> plain = nn.Conv2d(4, 8, 3, padding=1)
        >>> _ = conv.load_state_dict(plain.state_dict())       # stock keys
        >>> image = torch.randn(2, 4, 8, 8)
        >>> torch.allclose(conv(image), plain(image), atol=1e-5)  # it starts at the identity
        True
    """

    stock_class = nn.Conv2d
    predictor: PredictedSimilarity

    def sites(self, block_size: int | None) -> Sites:
        kernel = pair(self.kernel_size)
        return {"predictor": (Block(kernel), self.in_channels, kernel)}

    def similarity(self, input: Tensor, guide: Tensor | None = None) -> Tensor:
        """M for this input, without the kernel shape: ``(N, S·K, P, Q)`` or ``(N, K, K, P, Q)``.

        Over kernels it is ``(N, O·S·K, P, Q)``. For one M per image, P and Q are 1.
        """
        if input.dim() == 3:
            return self.similarity(*self._as_batch(input, guide))
        _check.image_batch(self, input, self.in_channels)
        padded, padding = explicit_padding(self, input)
        window = Window(pair(self.stride), pair(padding), pair(self.dilation))
        prediction = self.prediction("predictor")
        seen = input if prediction.sees_whole_image else padded
        M: Tensor = prediction(seen, window, self._padded_guide(input, guide))
        return M

    def forward(self, input: Tensor, guide: Tensor | None = None) -> Tensor:
        """The convolution; ``guide`` is where pairs are compared, if the predictor takes one."""
        if input.dim() == 3:
            return self.forward(*self._as_batch(input, guide))[0]
        if self.active is None:
            return super().forward(input)
        padded, padding = explicit_padding(self, input)
        prediction = self.prediction("predictor")
        window = Window(pair(self.stride), pair(padding), pair(self.dilation))
        output = None if guide is not None else conv2d_at_once(self, prediction, padded, window)
        if output is not None:
            return output
        weight = prediction.shaped(self.weight)
        _check.conv_output_shape(
            type(self).__name__, padded, weight, self.bias, *window, self.groups
        )
        seen = input if prediction.sees_whole_image else padded
        return predicted_conv2d(
            *(prediction, seen, padded, weight, self.bias, window, self.groups),
            self._padded_guide(input, guide),
        )

    def _as_batch(self, input: Tensor, guide: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if guide is None:
            return input[None], None
        _check.guide(type(self).__name__, input, guide)
        return input[None], guide[None]

    def _padded_guide(self, input: Tensor, guide: Tensor | None) -> Tensor | None:
        if guide is None:
            return None
        _check.guide(type(self).__name__, input, guide)
        return explicit_padding(self, guide)[0]


class DynamicConv1d(DynamicLayer, nn.Conv1d):
    """:class:`DynamicConv2d` in one dimension: sequences ``(N, C, L)``; without a guide.

    Example:
        >>> DynamicConv1d(4, 8, 5, padding=2)(torch.randn(2, 4, 20)).shape
        torch.Size([2, 8, 20])
    """

    stock_class = nn.Conv1d
    predictor: PredictedSimilarity

    def sites(self, block_size: int | None) -> Sites:
        return {"predictor": (Block(self.kernel_size), self.in_channels, (1, self.kernel_size[0]))}

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 2:
            return self.forward(input[None])[0]
        if self.active is None:
            return super().forward(input)
        if input.dim() != 3 or input.shape[1] != self.in_channels:
            raise ShapeError(
                f"DynamicConv1d: expected input of shape (N, {self.in_channels}, L) or "
                f"({self.in_channels}, L), got {_check.shape(input)}."
            )
        padded, padding = explicit_padding(self, input)
        prediction = self.prediction("predictor")
        window = Window((1, self.stride[0]), (0, padding[0]), (1, self.dilation[0]))
        row = padded.unsqueeze(2)  # an image of one row
        weight = prediction.shaped(self.weight).unsqueeze(2)
        _check.conv_output_shape(type(self).__name__, row, weight, self.bias, *window, self.groups)
        seen = input.unsqueeze(2) if prediction.sees_whole_image else row
        output = predicted_conv2d(prediction, seen, row, weight, self.bias, window, self.groups)
        return output[:, :, 0]


class DynamicLinear(DynamicLayer, nn.Linear):
    r"""``nn.Linear`` with a predicted similarity: :math:`y = W M_\theta(x) x + b`.

    Args:
        block_size: how many input features one M spans; all blocks share it. None means all
            features.

    Example:
        >>> DynamicLinear(12, 5, block_size=4)(torch.randn(2, 7, 12)).shape
        torch.Size([2, 7, 5])
    """

    stock_class = nn.Linear
    predictor: PredictedSimilarity

    def sites(self, block_size: int | None) -> Sites:
        size = features_in_block(self.in_features, block_size, type(self).__name__)
        return {"predictor": (Block((size,)), self.in_features, None)}

    def on_first_install(self) -> None:
        super().on_first_install()
        insist_on_calls(self)

    def forward(self, input: Tensor) -> Tensor:
        if self.active is None:
            return super().forward(input)
        if input.is_nested:
            raise ShapeError(
                "DynamicLinear: expected a padded tensor, got a nested one. In an "
                "nn.TransformerEncoder, set use_nested_tensor to False."
            )
        predictor = self.prediction("predictor")
        flat = input.reshape(-1, self.in_features)
        mixed = mix(flat, predictor(flat)).reshape(input.shape)
        return nn.functional.linear(mixed, predictor.shaped(self.weight), self.bias)


class DynamicLSTMCell(DynamicLayer, nn.LSTMCell):
    r"""``nn.LSTMCell`` whose gates use predicted similarities.

    .. math:: \text{gates} = W_{ih} M_{ih}(x, h) \, x + W_{hh} M_{hh}(x, h) \, h + b

    Both similarities are predicted from input and state together.

    Example:
        >>> cell = DynamicLSTMCell(3, 6)
        >>> hidden, memory = cell(torch.randn(2, 3))
        >>> hidden.shape
        torch.Size([2, 6])
    """

    stock_class = nn.LSTMCell
    predictor_ih: PredictedSimilarity
    predictor_hh: PredictedSimilarity

    def sites(self, block_size: int | None) -> Sites:
        seen, where = self.input_size + self.hidden_size, type(self).__name__
        return {
            "predictor_ih": (
                Block((features_in_block(self.input_size, block_size, where),)), seen, None,
            ),
            "predictor_hh": (
                Block((features_in_block(self.hidden_size, block_size, where),)), seen, None,
            ),
        }  # fmt: skip

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.active is None:
            return super().forward(input, hx)
        if input.dim() == 1:
            state = None if hx is None else (hx[0][None], hx[1][None])
            hidden, memory = self.forward(input[None], state)
            return hidden[0], memory[0]
        if input.dim() != 2 or input.shape[1] != self.input_size:
            raise ShapeError(
                f"DynamicLSTMCell: expected input of shape (N, {self.input_size}) or "
                f"({self.input_size},), got {_check.shape(input)}."
            )
        if hx is None:
            zeros = input.new_zeros(input.shape[0], self.hidden_size)
            hx = (zeros, zeros)
        hidden, memory = hx
        seen = torch.cat([input, hidden], dim=1)
        predictor_ih, predictor_hh = map(self.prediction, ("predictor_ih", "predictor_hh"))
        input = mix(input, predictor_ih(seen))
        hidden = mix(hidden, predictor_hh(seen))
        weight_ih = predictor_ih.shaped(self.weight_ih)
        weight_hh = predictor_hh.shaped(self.weight_hh)
        return torch.lstm_cell(
            input, (hidden, memory), weight_ih, weight_hh, self.bias_ih, self.bias_hh
        )


def mix(features: Tensor, similarity: Tensor) -> Tensor:
    """Apply M, per sample, to each block of the features: ``(B, I)`` by ``(B, K[, K])``."""
    size = similarity.shape[-1]
    blocks = features.reshape(features.shape[0], features.shape[-1] // size, size)
    if similarity.dim() == 2:
        return (blocks * similarity[:, None]).reshape(features.shape)
    return torch.bmm(blocks, similarity.mT).reshape(features.shape)
