"""A setting that was only renamed does not make a result outdated."""

import json

import pytest
from support.results_cases import change, keep_tests

from experiments.renamed_settings import current_names
from experiments.report.row_results import read_table
from experiments.tables import TABLES


@pytest.mark.parametrize(("method", "current"), [("ridge", True), ("r2d2", True), ("proto", False)])
def test_a_result_of_the_ridge_row(method, current, tmp_path):
    file = keep_tests(tmp_path, "ridge", 0, [[0.5], [0.5]])
    change(file, config={**json.loads(file.read_text())["config"], "method": method})
    assert read_table(TABLES["table6"], tmp_path, "short")["ridge"].is_current(0) is current


def test_only_the_setting_of_that_kind_is_renamed():
    assert current_names({"kind": "fewshot", "method": "ridge"})["method"] == "r2d2"
    assert current_names({"kind": "fewshot", "method": "proto", "data": "ridge"}) == {
        "kind": "fewshot", "method": "proto", "data": "ridge",
    }  # fmt: skip
    assert current_names({"kind": "train", "method": "ridge"})["method"] == "ridge"
