"""Joint t-SNE: same seed same points, what belongs together stays so, rows keep their tags."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal

from fedloom.analysis.geometry import squared_distances
from fedloom.analysis.tsne import Panel, Settings, joint_tsne, pick_rows
from fedloom.errors import BadInput


def test_a_copy_lies_beside_its_original_and_the_same_seed_gives_the_same_points():
    """150 + 150 rows, the second an exact copy: each point's nearest neighbour is its copy. Given
    to Barnes-Hut as they are, the copies would make the divergence negative (-1.2) and the plane
    13 times too wide; a true divergence is positive."""
    z, y = normal(150, 10), torch.arange(150) % 5
    panels = [Panel(z, y, 3, "before"), Panel(z.clone(), y, 3, "after")]
    embedding, again = joint_tsne(panels), joint_tsne(panels)
    assert torch.equal(embedding.points, again.points)
    assert embedding.divergence == again.divergence > 0
    nearest = squared_distances(embedding.points).fill_diagonal_(math.inf).argmin(1)
    assert torch.equal(nearest, (torch.arange(300) + 150) % 300)
    assert (embedding.n, embedding.different_rows) == (300, 150)
    alone = joint_tsne(panels[:1])
    assert torch.equal(embedding.points, alone.points.repeat(2, 1))
    assert alone.points.std() < 50


def test_near_copies_lie_beside_each_other():
    """Local training that moves features by a thousandth: nine in ten nearest are the same row."""
    z, y = normal(150, 10), torch.arange(150) % 5
    moved = z + 1e-3 * normal(150, 10, seed=1)
    embedding = joint_tsne([Panel(z, y, 0, "before"), Panel(moved, y, 0, "after")])
    nearest = squared_distances(embedding.points).fill_diagonal_(math.inf).argmin(1)
    assert embedding.different_rows == 300
    assert (nearest == (torch.arange(300) + 150) % 300).double().mean() > 0.9


def test_far_groups_stay_apart_and_every_point_keeps_its_tags():
    """Two clients 100 apart: in the plane, too, all ten nearest are of the same client."""
    first, second = normal(60, 70), normal(30, 70, seed=1) + 100
    labels = torch.arange(60) % 4, torch.arange(30) % 2
    embedding = joint_tsne([Panel(first, labels[0], 7, "a"), Panel(second, labels[1], 2, "b")])
    assert torch.equal(embedding.clients, torch.tensor([7] * 60 + [2] * 30))
    assert torch.equal(embedding.labels, torch.cat(labels))
    assert embedding.snapshots == ("a",) * 60 + ("b",) * 30
    assert embedding.settings.perplexity == pytest.approx(89 / 3)
    assert 0.9 < embedding.explained < 1
    assert 0 < embedding.iterations <= 1000
    near = squared_distances(embedding.points).topk(11, largest=False).indices
    assert torch.equal(embedding.clients[near], embedding.clients[:, None].expand(-1, 11))


def test_another_perplexity_is_another_picture():
    panel = [Panel(normal(100, 5), torch.zeros(100, dtype=torch.long), 0)]
    wide, narrow = joint_tsne(panel), joint_tsne(panel, Settings(perplexity=10))
    assert (wide.settings.perplexity, narrow.settings.perplexity) == (30, 10)
    assert not torch.allclose(wide.points, narrow.points, atol=1)


def test_picked_rows_keep_the_proportions_and_depend_on_nothing_but_labels_and_seed():
    """60 : 30 : 10 of 1000 at a hundred: 60, 30 and 10 rows."""
    labels = torch.repeat_interleave(torch.tensor([4, 0, 2]), torch.tensor([600, 300, 100]))
    picked = pick_rows(labels, 100)
    assert labels[picked].bincount().tolist() == [30, 0, 10, 0, 60]
    assert torch.equal(picked, pick_rows(labels, 100))
    assert torch.equal(picked, picked.sort().values)
    assert len(set(picked.tolist())) == 100
    assert not torch.equal(picked, pick_rows(labels, 100, seed=1))
    assert torch.equal(pick_rows(labels[:7], 100), torch.arange(7))


def test_constant_and_one_dimensional_features():
    """Constant: NaN points, no crash. One column: an embedding all the same."""
    labels = torch.zeros(12, dtype=torch.long)
    flat = joint_tsne([Panel(torch.full((12, 3), 0.1), labels, 0)])
    assert flat.points.isnan().all()
    assert math.isnan(flat.divergence)
    line = joint_tsne([Panel(torch.arange(12.0), labels, 0)])
    assert line.points.isfinite().all()
    assert line.points.shape == (12, 2)


def test_what_cannot_be_embedded_is_said():
    labels = torch.zeros(3, dtype=torch.long)
    panel = Panel(normal(3, 4), labels, 0)
    with pytest.raises(BadInput, match="3 rows; it takes 4 to 3000"):
        joint_tsne([panel])
    with pytest.raises(BadInput, match="6 rows; it takes 4 to 5"):
        joint_tsne([panel, panel], Settings(most_rows=5))
    with pytest.raises(BadInput, match="4 and 2 columns"):
        joint_tsne([panel, Panel(normal(3, 2), labels, 1)])
    with pytest.raises(BadInput, match="no panels"):
        joint_tsne([])
