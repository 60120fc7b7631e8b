"""Every number of a benchmark's section in benchmarks/README.md is in its newest file."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.dynamic_op import NEWER_KINDS
from benchmarks.networks import SIDE
from benchmarks.operands import FACTORED
from benchmarks.registry import BENCHMARKS, Benchmark
from benchmarks.run import run_benchmark
from benchmarks.timing import Timing, race
from benchmarks.wide_step import BASE_CLASSES, networks
from experiments.tables.table6 import ON_CIFAR_FS
from neural_similarity.train import build_model

FOLDER = Path(__file__).parents[2] / "benchmarks"
SECTIONS = dict(
    re.findall(
        r"^## `(\w+)`.*?\n(.*?)(?=^## |\Z)",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def document_rows(section: str) -> list[list[str]]:
    """The rows of a section's tables, without their heads."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {place for place, row in enumerate(rows) if set(row) == {"---"}}
    heads = {place - 1 for place in rules}
    return [row for place, row in enumerate(rows) if place not in rules | heads]


def measured(section: str, results: str = "results") -> dict[str, dict[str, dict]]:
    """Timings by table and contestant; the first of each, with which all compare, is left in."""
    newest = max(FOLDER.glob(f"{results}/{section}-*.json"))
    tables = json.loads(newest.read_text(encoding="utf-8"))["tables"]
    return {title: {_short(t["name"]): t for t in of} for title, of in tables.items()}


def static_step():
    for of in measured("static_step").values():
        for name, timing in list(of.items())[1:]:
            yield [name, ratio(timing), quartiles(timing)]


def dynamic_op():
    yield from operations("dynamic_op", ("diagonal", "unconstrained"))


def image_op():
    yield from operations("image_op", NEWER_KINDS)


def factored_op():
    yield from operations("factored_op", FACTORED, ours="factors kept apart")


def operations(section, kinds, ours="neural-similarity, compiled"):
    """Means over the shapes by kind and contestant, then the first kind shape by shape."""
    tables = measured(section)
    ways = ("forward", "forward and backward")
    for kind in kinds:
        means = [tables[f"{kind}, {way}, geometric mean over the shapes"] for way in ways]
        for name in list(means[0])[1:]:
            yield [kind, name, *(ratio(of[name]) for of in means)]
    shapes = [title.removeprefix(f"{kinds[0]}, forward, ") for title in tables]
    for shape in (shape for shape in shapes if shape.startswith("(")):
        by_way = [tables[f"{kinds[0]}, {way}, {shape}"] for way in ways]
        yield [shape, *(ratio(of[ours]) for of in by_way)]


def versions():
    tables = measured("versions")
    for kind in ("diagonal", "unconstrained"):
        ways = ("forward", "forward and backward")
        means = (tables[f"{kind}, {way}, geometric mean over the shapes"]["now"] for way in ways)
        yield [kind, *map(ratio, means)]


def family():
    tables = measured("family")
    for title in (title for title in tables if ", forward, " in title and "memory" not in title):
        layer, size = title.split(", forward, ")
        row = [layer, size]
        for way in ("forward", "forward and backward"):
            usual = tables[f"{layer}, {way}, {size}"]["usual way"]
            memory = tables[f"{layer}, {way}, {size}, peak memory, MB"].values()
            row += [ratio(usual), ", ".join(f"{one['ratio']:.0f}" for one in memory)]
        yield row


def network_step():
    times, per_work = measured("network_step").values()
    for name, timing in times.items():
        yield [name, ratio(timing), quartiles(timing), ratio(per_work[name])]


def throughput():
    times, speeds, shares = measured("throughput").values()
    for name, share in shares.items():
        spread = "–" if name == "plain" else quartiles(times[name])
        yield [name, ratio(times[name]), spread, f"{speeds[name]['ratio']:.0f}", ratio(share)]


def input_pipeline():
    batches, steps = measured("input_pipeline").values()
    for name, timing in list(batches.items())[1:]:
        yield [name.removeprefix("batch, "), f"{timing['ratio']:.3f}"]
    for name, timing in list(steps.items())[1:]:
        yield [re.search(r"\d+", name)[0], ratio(timing), quartiles(timing)]


def fewshot_episodes():
    _, ready, _, whole = measured("fewshot_episodes").values()
    for name, timing in ready.items():
        yield [name, f"{timing['ratio']:.0f}", f"{whole[name]['ratio']:.0f}"]


def maml_step():
    for title, of in measured("maml_step").items():
        _, task, *_, side = title.split(", ")
        yield [f"{task}, {side}", ratio(of["ours"]), quartiles(of["ours"])]


def static_episodes():
    tables = measured("static_episodes")
    for title, of in tables.items():
        if title.endswith("time an episode"):
            for name, timing in list(of.items())[1:]:
                yield [re.search(r"\d+ shots", title)[0], name, ratio(timing), quartiles(timing)]
    for title, of in tables.items():
        if "episodes a second" in title:
            rates = [f"{timing['ratio']:.2f}" for timing in of.values()]
            yield [re.search(r"\d+ shots", title)[0], *rates]


def adapted():
    for title, of in measured("adapted").items():
        times = [f"{of[name]['milliseconds']:.0f}" for name in ("PyTorch", "onnxruntime")]
        batch = title.partition("batch ")[2]
        yield [batch, *times, ratio(of["onnxruntime"]), quartiles(of["onnxruntime"])]


def inference():
    for title, of in measured("inference").items():
        runtime, batch = title.partition(",")[0], title.partition("batch ")[2].partition(",")[0]
        for name, timing in list(of.items())[1:]:
            yield [runtime, batch, name, ratio(timing), quartiles(timing)]


def wide_step():
    (of,) = measured("wide_step").values()
    for name, timing in list(of.items())[1:]:
        yield [name, ratio(timing), quartiles(timing)]


def ratio(timing: dict) -> str:
    return f"{timing['ratio']:.2f}"


def quartiles(timing: dict) -> str:
    return f"{timing['ratio_low']:.2f} – {timing['ratio_high']:.2f}"


def _short(name: str) -> str:
    """Contestants have short names in some places."""
    return name.removesuffix(" units").removesuffix(" hidden")


SECTIONS_WITH_TABLES = (
    static_step, dynamic_op, image_op, factored_op, versions, family, network_step, throughput,
    input_pipeline, fewshot_episodes, maml_step, static_episodes, adapted, inference, wide_step,
)  # fmt: skip


@pytest.mark.parametrize("rows_of", SECTIONS_WITH_TABLES, ids=lambda rows_of: rows_of.__name__)
def test_the_document_has_what_was_measured(rows_of):
    rows = [[_short(first), *rest] for first, *rest in document_rows(rows_of.__name__)]
    assert rows == list(rows_of())


def test_the_document_has_the_ratios_with_avx_512():
    """The second table of the introduction; its files are in a folder of their own."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for section, kinds, ours in (
        ("dynamic_op", ("diagonal", "unconstrained"), "neural-similarity, compiled"),
        ("image_op", NEWER_KINDS, "neural-similarity, compiled"),
        ("factored_op", FACTORED, "factors kept apart"),
    ):
        tables = measured(section, "results/avx512")
        for kind in kinds:
            ways = ("forward", "forward and backward")
            means = [tables[f"{kind}, {way}, geometric mean over the shapes"] for way in ways]
            assert f"| {kind} | {' | '.join(ratio(of[ours]) for of in means)} |" in text
            if "groups" in kind:
                one = "neural-similarity, one group"
                forward, both = (of[ours]["ratio"] / of[one]["ratio"] for of in means)
                words = (
                    f"take {forward:.2f} times as long as one group forward, and {both:.2f} times"
                )
                assert words in " ".join(text.split())


def test_the_networks_of_wide_step_are_those_of_table_6():
    rows = ("dynamic", "finetune", "wide-parameters", "wide-time")
    for row, network in zip(rows, networks().values(), strict=True):
        same = build_model(ON_CIFAR_FS.row(row).training("short"), BASE_CLASSES, 3, SIDE)
        assert str(network) == str(same)


def test_a_row_of_table_6_says_what_its_step_was_measured_to_cost():
    (row,) = (row for row in wide_step() if row[0] == "twice the width")
    assert f"takes {row[1]} of the dynamic NSN's time" in ON_CIFAR_FS.row("wide-time").deviation


def test_the_readme_says_how_fast_involution_was_measured_to_be():
    tables = measured("family")
    spans = []
    for way in ("forward", "forward and backward"):
        titles = [f"involution 7×7, {way}, {size}" for size in ("(8, 32, 56)", "(16, 64, 28)")]
        ratios = [tables[title]["usual way"]["ratio"] for title in titles]
        spans.append(f"{min(ratios):.1f} to {max(ratios):.1f} times")
        for title in titles:
            ours, usual = (m["ratio"] for m in tables[f"{title}, peak memory, MB"].values())
            assert ours / usual < 0.1
    text = " ".join((FOLDER.parent / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"Involution 7×7 runs {spans[0]} as fast as its usual form, {spans[1]} with its backward "
        "pass, in less than a tenth of the memory (one thread of a CPU, " in text
    )


def test_a_file_that_is_named_is_the_newest():
    named = re.findall(r"results/(\w+?)-[\d-]+\.json", "".join(SECTIONS.values()))
    assert {"throughput", "wide_step"} <= set(named)
    for section in named:
        assert max(FOLDER.glob(f"results/{section}-*.json")).name in SECTIONS[section]


def test_no_table_is_left_out():
    with_tables = {section for section in SECTIONS if document_rows(section)}
    assert with_tables == {rows_of.__name__ for rows_of in SECTIONS_WITH_TABLES}


def test_every_benchmark_has_a_section_and_a_result():
    assert set(SECTIONS) == set(BENCHMARKS)
    assert all(list(FOLDER.glob(f"results/{name}-*.json")) for name in BENCHMARKS)


def test_a_run_prints_ratios_and_writes_a_file_and_a_picture(tmp_path, capsys):
    def run(rounds):
        timings = race({"a": lambda: None, "b": lambda: None}, rounds)
        return {"a table": [*timings, Timing.of_ratio("c", 2.0)]}

    def plot(tables, path):
        path.write_text(", ".join(tables))

    run_benchmark(Benchmark("empty", "how long is nothing?", run, plot), 3, tmp_path)
    assert re.search(
        r"^  a +\d+\.\d+ +1\.00  1\.00 - 1\.00$", capsys.readouterr().out, re.MULTILINE
    )
    (file,) = tmp_path.glob("empty-*.json")
    assert file.with_suffix(".png").read_text() == "a table"
    record = json.loads(file.read_text())
    assert {"benchmark", "commit", "torch", "processor", "threads", "rounds"} <= record.keys()
    assert record["tables"]["a table"][0]["ratio"] == 1.0
    assert record["tables"]["a table"][2] == {"name": "c", "ratio": 2.0}
