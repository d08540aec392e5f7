"""Analytic rows: the closed form itself, and corpora one after the other as all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small

from promptdsi import Corpus
from promptdsi.methods.dsi_method import DSIMethod


def reference(method: Any, corpora: list[Corpus]) -> np.ndarray[Any, Any]:
    """Ridge regression of all corpora at once, in double precision, from the definition."""
    features, targets, ridge, first = [], [], 0.0, 0
    for number, corpus in enumerate(corpora):
        pairs = method.training_pairs(corpus, new=number > 0)
        position = {document.docid: first + place for place, document in enumerate(corpus.documents)}
        queries = method.encode([pair.text for pair in pairs]).double().numpy()
        documents = method._project(method.document_vectors(corpus)).double().numpy()
        features.append(np.concatenate([queries, documents]))
        targets += [position[pair.docid] for pair in pairs] + list(position.values())
        first += len(corpus)
        if number == 0:
            ridge = method.ridge * float((features[0] ** 2).sum()) / features[0].shape[1]
    X, Y = np.concatenate(features), np.eye(first)[targets]
    return np.linalg.solve(X.T @ X + ridge * np.eye(X.shape[1]), X.T @ Y).T


@pytest.mark.parametrize("projection", [0, 40])
def test_corpora_one_after_the_other_are_as_all_at_once(projection: int, backbone: str, corpora: list[Corpus]) -> None:
    method = small.method("analytic", backbone, projection=projection, ridge=0.1).fit(corpora[0])
    for corpus in corpora[1:]:
        method.add(corpus)
    rows = np.concatenate([block.numpy() for block in method.model_.rows.blocks])
    expected = reference(method, corpora)
    assert rows.shape == expected.shape == (sum(map(len, corpora)), projection or 16)
    np.testing.assert_allclose(rows, expected, atol=1e-3 * np.abs(expected).max())


def test_it_takes_over_the_encoder_of_a_trained_d0(backbone: str, corpora: list[Corpus]) -> None:
    trained: DSIMethod = small.method("rows", backbone, fit_epochs=1).fit(corpora[0])
    method = small.method("analytic", backbone, projection=24).begin_from(trained, corpora[0])
    assert all(old.equal(new) for old, new in zip(trained.model_.encoder.parameters(), method.model_.encoder.parameters(), strict=True))
    assert method.model_.rows.docids == trained.model_.rows.docids and method.model_.rows.width == 24
