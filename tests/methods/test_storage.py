"""Saved methods: those that earlier releases wrote are read under the present names, and what is written now uses only these."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from promptdsi import Corpus, DataError, Document, Judgement, Query
from promptdsi.methods import methods
from promptdsi.methods.options import flatten_params

GOLDEN = sorted(Path(__file__).parent.glob("golden/*/*"))
MORE = Corpus([Document("f", "the hot water")], [Query("q6", "hot water")], {"train": [Judgement("q6", "f")]}, name="d2")
# Old names and values that the golden methods were made with, and where they are found now.
EXPECTED = {
    "promptdsi": {"fit.row_init": "document", "add.epochs": 2, "add.batch_size": 4, "rows.row_norm_scale": 0.9, "rows.fix_row_norm": True},
    "dsi++": {"add.lr_scale": 0.5, "add.epochs": 1, "replay": 0.5, "add.row_decay": 0.0},
    "incdsi": {"add.weight": 0.4, "add.passes": 2, "add.row_init": "document", "encoding.normalize": False},
}


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_methods_saved_by_earlier_releases_are_read(folder: Path, tmp_path: Path) -> None:
    """Written once by the release before nested parameters (format 2), never again."""
    shutil.copytree(folder, tmp_path / "saved")
    kind = methods()[folder.name]
    method = kind.load(tmp_path / "saved")
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    results = method.search(expected["queries"], k=5)
    assert [result.docids for result in results] == expected["docids"]  # without b, which was deleted
    # One rounding of a float32 product is eps × |row| × |query|; IncDSI's rows reach a norm of 580, whose products cancel to scores of 3.
    norms = max(float(block.norm(dim=1).max()) for block in method.model_.rows.blocks) * float(
        method.encode(expected["queries"]).norm(dim=1).max()
    )
    close = [pytest.approx(scores, rel=1e-6, abs=torch.finfo(torch.float32).eps * norms) for scores in expected["scores"]]
    assert [result.scores for result in results] == close
    assert method.extra_bytes() == expected["extra_bytes"]
    assert EXPECTED[folder.name].items() <= flatten_params(method.get_params()).items()
    method.add(MORE).save(tmp_path / "again")  # training goes on, and the present format is written
    written = json.loads((tmp_path / "again" / "method.json").read_text("utf-8"))
    assert written["format"] == 3 and written["deleted"] == [1] and "row_norm" in written["metadata"]
    assert not {"dead", "facts"} & written.keys() and "fit_epochs" not in written["params"]
    assert kind.load(tmp_path / "again").search(expected["queries"]) == method.search(expected["queries"])


def test_a_method_of_another_name_or_of_a_later_format_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN[0].parent / "incdsi", tmp_path / "saved")
    with pytest.raises(DataError, match="holds a incdsi of format 2, expected rows of format 3"):
        methods()["rows"].load(tmp_path / "saved")
    path = tmp_path / "saved" / "method.json"
    path.write_text(path.read_text("utf-8").replace('"format": 2', '"format": 4'), "utf-8")
    with pytest.raises(DataError, match="of format 4, expected incdsi of format 3"):
        methods()["incdsi"].load(tmp_path / "saved")
