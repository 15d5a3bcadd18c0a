"""A model's card: where it comes from, what goes in, what comes out, how well it did.

`card.json` is for programs and is checked when it is read; `CARD.md` says the same in words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedloom.core.fields import Field as InputField
from fedloom.core.fields import placed, width
from fedloom.core.score import Moment
from fedloom.core.task import Targets
from fedloom.data.normalization import Scaling
from fedloom.data.source import Kind
from fedloom.errors import BadInput
from fedloom.files import jsonable, parse_json, read_regular, write_atomic, write_json
from fedloom.serving.preprocessing import Dtype, Preprocessing

CARD, IN_WORDS = "card.json", "CARD.md"
WORDS = "vocabulary.txt"
"""The file with the words of a model of text: a line each, the first has the id 2."""
FORMAT: Literal[2] = 2
"""Of cards. 1: of a deployed site's model alone."""
_FILE = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_SHOWN = 40
"""Names that the card in words lists at most."""
_UNNAMED_OUTPUTS = 10_000
"""Outputs that need no names at most."""
_COLUMNS: Mapping[Targets, str] = {
    "classes": "One column for each class, with its probability",
    "labels": "One column for each label, with the probability that a row has it",
    "numbers": "One column for each number, in the unit of the data",
}
"""What the columns of a prediction are."""
_MAY_BE_ABSENT = (
    *("chosen_rounds", "fields", "encoded"),
    *("privacy", "epsilon", "secure_aggregation"),
)
"""Fields that a card is written without where they say nothing."""


NotNegative = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Side = Annotated[int, Field(ge=1, le=10**7)]
Scores = dict[str, dict[str, float | None]]
"""Split -> metric -> value; None where it is not a number."""


class Joined(BaseModel):
    """How a newcomer joined a run that had ended, and what that was worth."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    epochs: Annotated[int, Field(ge=1)]
    """That it trained."""
    federation_sha256: str
    """Of all states of the run that it joined."""
    received: Scores
    """Split -> what the model scored as it was received."""
    alone: Scores
    """Split -> what training alone scored, with the same rows and as many epochs."""


class Card(BaseModel):
    """What is to be known of a model; a stranger's may say anything, so every field is checked."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[2] = FORMAT
    """Of the card."""
    client: NotNegative
    """Whose model it is, by number."""
    name: str
    """The same by the name of its site or user; its number where it has none."""
    model: Literal["personal", "global"]
    """The client's own, or the one common to all."""
    moment: Moment
    """When it was as it is: as received, after local training, after fine-tuning, or as kept."""
    round: int
    """After which round."""
    chosen_rounds: Annotated[list[int], Field(max_length=10**6)] = []
    """The rounds that the run's result is of, where its protocol chose others than this one."""
    method: str
    """With all settings."""
    network: str
    """Its expression; several, dealt to the clients in turn, with `|` between them."""
    imports: list[str]
    """Files and modules with code of the user's own, with digests."""
    clients: Annotated[int, Field(ge=1)]
    """How many trained."""
    seed: int
    """Of the run."""
    protocol: str
    """By which the run is judged."""
    data: str
    """Its name."""
    data_sha256: str
    """Of rows, labels and names of classes."""
    partition: str
    """How the rows were divided over clients."""
    partition_sha256: str
    """Of who holds which row."""
    training_rows: int
    """Of the client."""
    kind: Kind
    """What an input is."""
    shape: Annotated[list[Side], Field(min_length=1, max_length=3)]
    """Of one raw row."""
    dtype: Dtype
    """Of raw rows: pixels of one byte, numbers, or token ids."""
    vocabulary: Annotated[int, Field(ge=0, le=10**8)]
    """Number of token ids of text; 0 otherwise."""
    fields: Annotated[list[InputField], Field(max_length=1000)] = []
    """The inputs that a row consists of, where there are several or rows are of unlike length."""
    mean: list[Finite]
    """Raw rows (pixels over 255) minus this over `std` are what the network reads."""
    std: list[Annotated[Finite, Field(gt=0)]]
    """The deviation: one for all, or one for each channel or column."""
    columns: list[str]
    """Of a table, in the order of a row, where they are known."""
    encoder: str | None
    """The frozen network that rows go through before the client's, if any."""
    encoded: Annotated[list[Side], Field(max_length=3)] = []
    """Shape of what the encoder makes of a row; then `mean` and `std` are of that. Empty in cards
    of before, whose rows are the encoder's outputs themselves."""
    task: str
    """What was learned."""
    predicts: Targets
    """What an answer is: one class, any of several labels, or numbers."""
    outputs: Annotated[int, Field(ge=1, le=10**6)]
    """Numbers that the network puts out for a row."""
    class_names: Annotated[list[str], Field(max_length=10**6)]
    """In the order of the outputs; none where the data has no classes."""
    metrics: Scores
    """Split -> what the run recorded of this very model on the client's rows."""
    rows_scored: dict[str, int]
    """Split -> on how many rows."""
    metrics_of_fixed_draws: Scores = {}
    """The same by the draws that the model keeps, of a method that draws to predict."""
    joined: Joined | None = None
    """Of a newcomer's model, which no round of the run has made; then `data`, `metrics` and the
    partition's digest are of its own rows."""
    shared: list[str]
    """Tensors of the network that left the client in training."""
    personal: list[str]
    """Tensors of the network that never did."""
    privacy: str = ""
    """The run's differential privacy; empty: none."""
    epsilon: Finite | None = None
    """What that was worth in the end, of the client that told most."""
    secure_aggregation: str = ""
    """How the clients' uploads were masked; empty: not at all."""
    slices: dict[str, int]
    """Part of the model -> how many numbers; beside the network, what the method keeps."""
    draws: NotNegative
    """How often a prediction draws at random."""
    state_sha256: str
    """Of all tensors."""
    versions: dict[str, str | int]
    """Of fedloom, torch and others."""
    files: dict[Annotated[str, Field(pattern=_FILE)], str] = {}
    """File -> its sha256. Names and never paths."""

    @model_validator(mode="after")
    def _outputs_are_named(self) -> Self:
        """A short card cannot ask for a network of a million outputs."""
        if self.fields and [width(self.fields)] != self.shape:
            raise ValueError(f"its inputs have {width(self.fields)} numbers, a row {self.shape}")
        if len(self.class_names) != self.outputs and self.outputs > _UNNAMED_OUTPUTS:
            raise ValueError(f"{self.outputs} outputs have {len(self.class_names)} names")
        return self

    @property
    def preprocessing(self) -> Preprocessing:
        """What raw rows look like and how they are normalised."""
        scaling = Scaling(tuple(self.mean), tuple(self.std))
        shape, fields = tuple(self.shape), tuple(self.fields)
        return Preprocessing(self.kind, shape, self.dtype, scaling, fields, tuple(self.encoded))

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of every output, where the data names them."""
        return tuple(self.class_names) if len(self.class_names) == self.outputs else ()

    @property
    def warning(self) -> str:
        """That the run's result is not of this model; empty where it is."""
        if not self.chosen_rounds:
            return ""
        one = len(self.chosen_rounds) == 1
        return (
            f"the run's result is of round{'' if one else 's'} {_listed(self.chosen_rounds)}, which"
            f" its protocol chose, and this model of client {self.name} is as it was after round"
            f" {self.round}, with its own scores on its card; a run with checkpoint_every=1 keeps"
            " the states of a chosen round as far as history allows"
        )

    def write(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write the card, in both forms, for these files, which are written already."""
        digests = {name: sha256(content).hexdigest() for name, content in files.items()}
        described = self.model_copy(update={"files": digests})
        write_atomic(folder / IN_WORDS, described.in_words())
        absent = {name for name in _MAY_BE_ABSENT if not getattr(self, name)}
        plain = jsonable(described.model_dump(exclude=absent))
        write_json(folder / CARD, {**plain, "sha256": _digest(plain)})  # now this is the model

    @classmethod
    def read(cls, folder: Path) -> Card:
        """The card of a folder, unaltered since it was written."""
        file = folder / CARD
        try:
            fields = parse_json(read_regular(file))
        except OSError as e:
            raise BadInput(f"there is no personal model in {folder} ({e.strerror})") from None
        except ValueError as e:
            raise BadInput(f"{file} is not valid JSON ({e}); restore it") from None
        if not isinstance(fields, dict):
            raise BadInput(f"{file} is no model's card; restore it")
        stated = fields.pop("sha256", None)
        try:
            card = cls(**fields)
        except (ValidationError, TypeError) as e:
            raise BadInput(f"{file} is no card of this version of fedloom: {_first(e)}") from None
        if _digest(fields) != stated:
            raise BadInput(f"{file} was altered after it was saved; restore it")
        return card

    def content(self, folder: Path, name: str, most: int) -> bytes:
        """One of its files, which must be the one that the card was written for."""
        try:
            content = read_regular(folder / name, most)
        except OSError as e:
            raise BadInput(f"cannot read {folder / name} of the model ({e.strerror})") from None
        if sha256(content).hexdigest() != self.files[name]:
            raise BadInput(f"{folder / name} is not the file of the model's card; restore it")
        return content

    def in_words(self) -> str:
        """The card as a page of Markdown."""
        rows = [
            ("Method", f"`{self.method}`"),
            ("Network", f"`{self.network}`"),
            ("Task", self.task),
            ("Data", self._of_data()),
            ("Trained on", f"{self.training_rows} rows of this client; {self._whose()}"),
            ("Judged by", f"protocol `{self.protocol}`"),
        ]
        table = "\n".join(f"| {name} | {text} |" for name, text in rows)
        sections = [
            f"# Model of client {self.name}",
            f"Made by fedloom {self.versions.get('fedloom', '')}; `{CARD}` has the same for"
            " programs.",
            f"| | |\n|---|---|\n{table}",
            f"## What goes in\n\n{self._inputs()}",
            f"## What comes out\n\n{self._outputs()}",
            f"## How well it did\n\n{self._scores()}",
            f"## What was shared\n\n{self._sharing()}",
            f"## Files and digests\n\n{self._digests()}",
        ]
        return "\n\n".join(sections) + "\n"

    def _of_data(self) -> str:
        if self.joined is not None:
            return f"{self.data}, of a newcomer; a federation of {self.clients} clients went before"
        return f"{self.data}, divided by `{self.partition}` over {self.clients} clients"

    def _whose(self) -> str:
        moments: Mapping[Moment, str] = {
            "received": "as the client received it",
            "trained": "after the client's local training",
            "adapted": "after fine-tuning at the client",
            "final": "after the final tuning at the client",
        }
        if self.joined is not None:
            return f"its own model, {self.joined.epochs} epochs after it joined, round {self.round}"
        which = "its own model" if self.model == "personal" else "the model common to all clients"
        return f"{which}, {moments[self.moment]}, round {self.round}"

    def _inputs(self) -> str:
        types = {"uint8": "pixels 0 to 255 (uint8)", "int64": "token ids (int64)"}
        of = types.get(self.dtype, "numbers (float32)")
        if self.fields:
            return self._several_inputs()
        axes = " x ".join(["n", *map(str, self.shape)])
        lines = [f"Raw rows, {self.kind}, `{axes}`, {of}."]
        if self.encoded:
            lines.append(
                f"Inside the model they first go through the frozen encoder `{self.encoder}`, which"
                f" makes `{' x '.join(['n', *map(str, self.encoded)])}` numbers of them."
            )
        if self.dtype != "int64":
            unit = "row / 255" if self.dtype == "uint8" and not self.encoded else "row"
            lines.append(
                f"The model itself normalises {'these' if self.encoded else 'them'}:"
                f" ({unit} - mean) / deviation, with mean"
                f" {_listed(self.mean)} and deviation {_listed(self.std)}."
            )
        if self.dtype == "int64" and WORDS in self.files:
            lines.append(
                f"The ids are of the words in `{WORDS}`, a line each: the first has the id 2, 1 is"
                " any other word, 0 fills up short texts, longer ones are cut. Words are in lower"
                " case, without white space, quotes, colons and semicolons; each of `.,()!?'` is a"
                " word. Loaded by fedloom, the model takes texts. The words are those of all"
                " clients' texts, test rows included: whoever gets the model gets them too."
            )
        if self.columns:
            lines.append(f"Columns, in this order: {_listed(self.columns)}.")
        if self.encoder is not None and not self.encoded:
            lines.append(f"Rows are what the frozen encoder `{self.encoder}` makes of images.")
        return "\n\n".join(lines)

    def _several_inputs(self) -> str:
        """Each input, its place in a flat row, and by what it is normalised."""
        lines = [
            "| input | a row of it | places in a flat row | mean | deviation |",
            "|---" * 5 + "|",
        ]
        start = 0
        for field, place, length_at in placed(self.fields):
            what = f"{field.kind} {list(field.shape)}"
            what += " of pixels 0 to 255" if field.pixels else ""
            what += f" of ids below {field.vocabulary}" if field.kind == "text" else ""
            what += f", up to {field.longest} positions" if length_at is not None else ""
            places = f"{place.start} to {place.stop - 1}"
            places += f", its length at {length_at}" if length_at is not None else ""
            own = slice(start, start + field.channels)
            if len(self.mean) == 1 and field.channels:
                own = slice(1)  # one for all
            numbers = [_listed(of[own]) for of in (self.mean, self.std)]
            lines.append(f"| {' | '.join([field.name, what, places, *numbers])} |")
            start += field.channels
        return (
            "Several inputs, or rows of unlike length: a dictionary, tuple or list of them as in"
            " training, or flat rows (float32) with all numbers of a row one after another. The"
            " model itself normalises them, (number - mean) / deviation, pixels over 255 first.\n\n"
            + "\n".join(lines)
        )

    def _outputs(self) -> str:
        lines = [f"`n x {self.outputs}`, predictions of the task {self.task}."]
        if self.classes:
            lines.append(f"{_COLUMNS[self.predicts]}: {_listed(self.classes)}.")
        if self.draws:
            lines.append(
                "The method averages over random draws. The run drew anew for every row; this"
                " model's were drawn once, so that a row always gets the same answer. Its numbers"
                " are therefore given beside the run's."
            )
        return "\n\n".join(lines)

    def _scores(self) -> str:
        sources = {"recorded by the run": self.metrics}
        if self.joined is not None:
            alone = f"trained alone for {self.joined.epochs} epochs"
            sources = {
                "this model": self.metrics,
                "as received": self.joined.received,
                alone: self.joined.alone,
            }
        if self.metrics_of_fixed_draws:
            sources["this model, with its own draws"] = self.metrics_of_fixed_draws
        lines = [
            f"| {split} ({self.rows_scored[split]} of the client) | {metric} | "
            + " | ".join(_rounded(source.get(split, {}).get(metric)) for source in sources.values())
            + " |"
            for split, metrics in self.metrics.items()
            for metric in metrics
        ]
        warning = f"Note that {self.warning}.\n\n" if self.warning else ""
        if not lines:
            return f"{warning}The run recorded no score of this very model at this client."
        head = ["rows", "metric", *sources]
        return warning + "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines])

    def _sharing(self) -> str:
        shared = f"Left the client in training: {_listed(self.shared) or 'nothing'}."
        personal = f"Never left it: {_listed(self.personal) or 'no tensor of the network'}."
        if self.joined is not None:
            shared = f"Came from the federation: {_listed(self.shared) or 'nothing'}."
            personal = "Nothing left the newcomer."
        others = [name for name in self.slices if name != "model"]
        more = (
            f"\n\nBeside the network the model holds what {_listed(others)} computed of the"
            " client's rows (for instance features or prototypes); whoever gets the model gets"
            " these too."
        )
        return f"{shared}\n\n{personal}{self._protection()}{more if others else ''}"

    def _protection(self) -> str:
        """What was done to uploads so that they tell less."""
        said = ""
        if self.privacy:
            worth = "" if self.epsilon is None else f", epsilon {self.epsilon:.4g} in the end"
            said += f"\n\nDifferential privacy of what left clients: `{self.privacy}`{worth}."
        if self.secure_aggregation:
            said += (
                f"\n\nUploads were masked (`{self.secure_aggregation}`): the server learned their"
                " sums, and no single one."
            )
        if said:
            said += " This is of what left a client; what stayed, as this model, is not covered."
        return said

    def _federation(self) -> list[str]:
        if self.joined is None:
            return []
        return [f"- the run that was joined, all states: `{self.joined.federation_sha256}`"]

    def _digests(self) -> str:
        lines = [f"- `{name}`: sha256 `{digest}`" for name, digest in self.files.items()]
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return "\n".join(
            [
                *lines,
                f"- the model's tensors: sha256 `{self.state_sha256}`",
                f"- the data: `{self.data_sha256}`; its partition: `{self.partition_sha256}`",
                *self._federation(),
                f"- versions: {versions}",
            ]
        )


def _listed(values: Any) -> str:
    values = list(values)
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values[:_SHOWN]) + more


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _digest(fields: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _first(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
