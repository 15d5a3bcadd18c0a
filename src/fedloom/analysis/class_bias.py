"""How a client's classifier treats classes the client never saw (FedBR Figures 3, 11 and 15)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, as_probabilities
from fedloom.errors import BadInput


@dataclass(frozen=True, eq=False)
class ClassifierBias:
    """Where samples of unseen classes go; NaN where the client saw every class of the test set."""

    predicted: Tensor
    """[C], share of unseen-class samples predicted as each class; ties go to the lowest."""
    mean_softmax: Tensor
    """[C], their mean probability of each class."""
    seen_mass: float
    """Share of them predicted as a seen class: 1 is fully biased, 0 not at all."""
    seen_mass_soft: float
    """Mean probability they give to seen classes."""
    seen_mass_noise: float
    """Binomial standard deviation of seen_mass."""
    blind: float
    """What a uniform predictor gives: the share of classes that were seen."""
    entropy: float
    """Of `predicted` over ln C; 1 is balanced."""
    distance_to_labels: float
    """Total variation between `predicted` and these samples' true labels."""
    distance_noise: float
    """What that would be for as many predictions drawn from the labels' law."""
    unseen_recall: float
    seen_recall: float
    seen_recall_restricted: float
    """Accuracy on samples of seen classes when only seen classes may be answered."""
    seen: Tensor
    """[C], which classes count as seen."""
    n_unseen: int
    n_seen: int


@dataclass(frozen=True, eq=False)
class PriorAgreement:
    """How far predictions follow the client's own label mix, where no class is wholly absent."""

    predicted: Tensor
    """[C], share of samples predicted as each class."""
    correlation: float
    """Of these shares with the local label shares; NaN where either is uniform."""
    divergence: float
    """KL(predicted || local labels) in nats, one count added to every class."""
    distance_to_uniform: float
    """Total variation between the predictions and the uniform law, for a balanced test set."""
    distance_noise: float
    """What that would be for as many predictions drawn uniformly."""
    n: int


def classifier_bias(
    probabilities: Array, labels: Array, train_counts: Array, at_least: int = 1
) -> ClassifierBias:
    """Bias of one client's model [n, C] on a test set; seen classes have `at_least` train samples.

    >>> always_zero = torch.tensor([[1.0, 0.0, 0.0]]).repeat(4, 1)
    >>> bias = classifier_bias(always_zero, torch.tensor([0, 1, 2, 2]), torch.tensor([5, 0, 0]))
    >>> bias.seen_mass, bias.distance_to_labels, bias.unseen_recall, bias.n_unseen
    (1.0, 1.0, 0.0, 3)
    """
    p = as_probabilities(probabilities)
    classes = p.shape[1]
    truth = as_labels(labels, len(p), classes)
    seen = _counts(train_counts, classes) >= at_least
    unseen_rows = ~seen[truth]
    answer = p.argmax(1)
    restricted = torch.where(seen, p, -1.0).argmax(1)  # unseen classes below any probability
    predicted = _shares(answer[unseen_rows], classes)
    true_law = _shares(truth[unseen_rows], classes)
    # Counted, not added up from shares, whose sum may be above one by rounding.
    mass, n_unseen = float(seen[answer[unseen_rows]].double().mean()), int(unseen_rows.sum())
    soft = p[unseen_rows].mean(0)
    right = (answer == truth).double()
    return ClassifierBias(
        predicted=predicted,
        mean_softmax=soft,
        seen_mass=mass,
        seen_mass_soft=float(soft[seen].sum()) if n_unseen else math.nan,
        seen_mass_noise=math.sqrt(mass * (1 - mass) / n_unseen) if n_unseen else math.nan,
        blind=float(seen.double().mean()),
        entropy=float(torch.special.entr(predicted).sum()) / math.log(classes),
        distance_to_labels=float((predicted - true_law).abs().sum() / 2),
        distance_noise=_distance_noise(true_law, n_unseen),
        unseen_recall=float(right[unseen_rows].mean()),
        seen_recall=float(right[~unseen_rows].mean()),
        seen_recall_restricted=float((restricted == truth).double()[~unseen_rows].mean()),
        seen=seen,
        n_unseen=n_unseen,
        n_seen=len(p) - n_unseen,
    )


def prior_agreement(probabilities: Array, train_counts: Array) -> PriorAgreement:
    """Agreement of predictions on a class-balanced test set with the local label counts [C].

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    >>> agreement = prior_agreement(p, torch.tensor([30, 10]))
    >>> round(agreement.correlation, 9), agreement.distance_to_uniform
    (1.0, 0.25)
    """
    p = as_probabilities(probabilities)
    classes = p.shape[1]
    counts = _counts(train_counts, classes)
    predicted = _shares(p.argmax(1), classes)
    smoothed = (counts + 1) / (counts + 1).sum()
    uniform = torch.full_like(predicted, 1 / classes)
    return PriorAgreement(
        predicted=predicted,
        correlation=_correlation(predicted, counts),
        divergence=float((torch.special.xlogy(predicted, predicted / smoothed)).sum()),
        distance_to_uniform=float((predicted - uniform).abs().sum() / 2),
        distance_noise=_distance_noise(uniform, len(p)),
        n=len(p),
    )


def _counts(train_counts: Array, classes: int) -> Tensor:
    counts = as_matrix(train_counts, "train counts").flatten()
    if len(counts) != classes or (counts < 0).any():
        raise BadInput(f"train counts must be {classes} numbers of samples, one per class")
    return counts


def _shares(answers: Tensor, classes: int) -> Tensor:
    """Share of each class [C]; NaN without answers."""
    return answers.bincount(minlength=classes).double() / len(answers)


def _distance_noise(law: Tensor, n: int) -> float:
    """Mean total variation between a law and the shares of n draws from it, by normal errors."""
    return float((2 * law * (1 - law) / (math.pi * n)).sqrt().sum() / 2) if n else math.nan


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return float(a @ b / scale) if scale > 1e-12 else math.nan
