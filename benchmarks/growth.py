"""How the time of the dynamic operation grows with batch, channels and image side.

One axis grows at a time from (batch, channels, side) = (32, 64, 16); forward and backward.
"""

from __future__ import annotations

from pathlib import Path

from .dynamic_op import contestants
from .operands import make
from .timing import Timing, race

BASE = {"batch": 32, "channels": 64, "side": 16}
SIZES = {
    "batch": (4, 8, 16, 32, 64, 128),
    "channels": (8, 16, 32, 64, 128, 256),
    "side": (4, 8, 16, 32, 64),
}
CONTESTANTS = (
    "plain convolution",
    "neural-similarity, compiled",
    "neural-similarity, pure",
    "unfold, multiply",
)


def run(rounds: int) -> dict[str, list[Timing]]:
    tables = {}
    for axis, sizes in SIZES.items():
        for size in sizes:
            s = {**BASE, axis: size}
            tensors = make((s["batch"], s["channels"], s["channels"], s["side"]), "diagonal")
            runs = contestants("diagonal", "forward and backward", tensors)
            tables[f"{axis} {size}"] = race({k: runs[k] for k in CONTESTANTS if k in runs}, rounds)
    return tables


def plot(tables: dict[str, list[Timing]], path: Path) -> None:
    """Milliseconds over size, one panel for each axis, both scales logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SIZES), figsize=(12, 4), sharey=True, layout="constrained")
    for panel, (axis, sizes) in zip(panels, SIZES.items(), strict=True):
        for number, name in enumerate(t.name for t in tables[f"{axis} {sizes[0]}"]):
            times = [tables[f"{axis} {size}"][number].milliseconds for size in sizes]
            panel.plot(sizes, times, marker="o", markersize=4, label=name)
        fixed = ", ".join(f"{k} {v}" for k, v in BASE.items() if k != axis)
        panel.set(xscale="log", yscale="log", xlabel=f"{axis}  ({fixed})")
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("forward and backward, ms")
    panels[0].legend(frameon=False, fontsize=9)
    figure.suptitle(
        "Dynamic diagonal similarity beside a plain convolution, 3×3, channels_last, float32"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
