"""What a prediction is called, worked by hand."""

from __future__ import annotations

import torch

from fedloom.serving.answers import Answers


def test_a_class_is_the_likeliest_by_name() -> None:
    answers = Answers(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), "classes", ("no", "yes"))
    assert answers.to_csv(["a.png", "b, c.png"], "file").splitlines() == [
        "file,prediction,probability,p(no),p(yes)",
        "a.png,yes,0.75,0.25,0.75",
        '"b, c.png",no,0.5,0.5,0.5',
    ]


def test_classes_without_names_are_numbers() -> None:
    assert list(Answers(torch.tensor([[0.0, 1.0]]), "classes", ()).rows()) == [
        {"prediction": "1", "probability": 1.0, "p(0)": 0.0, "p(1)": 1.0}
    ]


def test_labels_and_numbers_have_no_likeliest() -> None:
    """Of any of several labels each has its probability; numbers are what they are."""
    labels = Answers(torch.tensor([[0.5, 0.75]]), "labels", ("red", "wide"))
    assert list(labels.rows()) == [{"red": 0.5, "wide": 0.75}]
    one, two = (Answers(torch.full((1, k), 2.5), "numbers", ()) for k in (1, 2))
    assert list(one.rows()) == [{"prediction": 2.5}]
    assert list(two.rows()) == [{"prediction_0": 2.5, "prediction_1": 2.5}]
    assert list(Answers(torch.tensor([3.0]), "numbers", ()).rows()) == [{"prediction": 3.0}]
