"""What M is predicted from, and what it spans."""

import neural_similarity as ns

from .cases import SMALL

SOURCES = {
    "patch": SMALL,
    "pixel": ns.PixelPredictor(hidden=4, gate="tanh"),
    "image": ns.ImagePredictor(hidden=4),
}
SPANS = {
    "taps": {},
    "taps in groups": {"similarity_groups": "divisor"},
    "channels": {"over": "channels"},
    "channels in groups": {"over": "channels", "similarity_groups": "divisor"},
    "both": {"over": "both"},
    "both in groups": {"over": "both", "similarity_groups": "divisor"},
    "kernels": {"over": "kernels"},
    "kernels in groups": {"over": "kernels", "similarity_groups": "divisor"},
}
