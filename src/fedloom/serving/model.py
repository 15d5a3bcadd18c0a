"""One client's model: predicts for raw rows, is saved and read back, exported and served."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.outputs import SCAN_ROWS
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.task import parse_task
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, place, place_state, plain_state
from fedloom.core.wire import pack, unpack
from fedloom.data.text import FIRST, numbered
from fedloom.errors import BadInput, FedloomError
from fedloom.expression import parse_one
from fedloom.extensions import Place, load_extensions, plain_path
from fedloom.files import write_atomic
from fedloom.methods import parse_method
from fedloom.models import build_model, outside_places
from fedloom.models.fixed_encoder import FixedEncoder, pretrained_encoder
from fedloom.models.size import counted
from fedloom.serving.answers import Answers
from fedloom.serving.card import WORDS, Card
from fedloom.serving.draws import FixedDraws, draws_of

log = logging.getLogger("fedloom")
TENSORS = "personal-{}.safetensors"
_ONE_AT_A_TIME = RLock()
"""A network's weights are set before it runs, and the models of one run share networks: two threads
would get each other's answers."""
_MOST_BYTES = 1 << 36
_MOST_WORDS = 1 << 26
"""Bytes of a file of words."""


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """What one client ends up with, as its run was judged: network, weights, preprocessing.

    >>> from fedloom.launch.start import run
    >>> model = run("fedper", rounds=1, clients=4, partition="iid").client(2)
    >>> import numpy
    >>> model.predict(numpy.zeros((3, 1, 8, 8), "uint8")).shape, model.card.class_names[:3]
    (torch.Size([3, 10]), ['0', '1', '2'])
    """

    program: Program
    state: State
    """Everything a prediction needs, by slice."""
    card: Card
    words: tuple[str, ...] = ()
    """Of a model of text: those with a token id, from 2 on, where they are known."""

    @classmethod
    def of(
        cls, program: Program, state: State, card: Card, words: tuple[str, ...] = ()
    ) -> PersonalModel:
        """A model whose card also says how often it draws."""
        model = cls(program, place_state(plain_state(state), torch.device("cpu")), card, words)
        return model.described(draws=len(model.draws))

    def described(self, **changes: Any) -> PersonalModel:
        """The same model, whose card says something more."""
        return replace(self, card=self.card.model_copy(update=changes))

    @property
    def net(self) -> Net:
        """The client's network, whose weights are in the state."""
        return self.program.net(self.card.client)

    @cached_property
    def encoder(self) -> FixedEncoder | None:
        """What raw images go through before the network, if the run had one."""
        if self.card.encoder is None or not self.card.encoded:
            return None
        return pretrained_encoder(self.card.encoder, tuple(self.card.shape))

    @torch.no_grad()
    def predict(self, x: Any, *, encoded: bool = False) -> Tensor:
        """The task's prediction of raw rows [n, ...], as the client's data has them: probabilities
        [n, K] for classes. A row gets the same answer alone and among others, up to rounding. A
        model of text takes texts, or their token ids.

        `encoded`: the rows went through the model's encoder already.
        """
        preprocessing = self.card.preprocessing
        if encoded:
            preprocessing = preprocessing.behind_encoder
        encoder = self.encoder if preprocessing.encoded else None
        weights = {} if encoder is None else encoder.weights
        rows, scaling = preprocessing.rows(self._ids(x)), preprocessing.scale_and_offset
        cpu, parts = torch.device("cpu"), []
        with _ONE_AT_A_TIME, one_thread():  # as in the run: the last bits of a sum depend on it
            for raw in torch.split(rows, SCAN_ROWS):
                read = raw if encoder is None else encoder(weights, raw)
                inputs = place(preprocessing(read, *scaling), cpu)
                with FixedDraws(self.draws), _naming_unknown_ids(self.card, raw):
                    parts.append(self.prediction(self.state, inputs))
        return torch.cat(parts)

    def _ids(self, x: Any) -> Any:
        """Texts by their token ids; other rows as they are."""
        if self.card.kind != "text" or not isinstance(x, Iterable):
            return x
        if isinstance(x, str):
            raise BadInput("the model takes a list of texts, also where it is a single one")
        texts = list(x)
        if not texts or not all(isinstance(text, str) for text in texts):
            return x
        if not self.words:
            raise BadInput(
                "the model takes token ids and no texts: its data were ids, whose words it does not"
                " know"
            )
        return numbered(texts, self.words, self.card.shape[0])

    def answers(self, x: Any) -> Answers:
        """The predictions of raw rows with the names of what was predicted; a prediction that is
        not a number is refused, because no class is the likeliest."""
        predictions = self.predict(x)
        broken = ~predictions.reshape(len(predictions), -1).isfinite().all(1)
        if broken.any():
            raise BadInput(
                f"the model's prediction of row {int(broken.nonzero()[0])} is not a number; its"
                " values are too large for the model, or the model broke down in training"
            )
        return Answers(predictions, self.card.predicts, self.card.classes)

    def prediction(self, state: State, inputs: Tensor) -> Tensor:
        """As the run predicts; a common model does as plain averaging does."""
        method = self.program.method
        if self.card.model == "global":
            return Method.predict(method, self.net, state, inputs)
        return method.predict(self.net, state, inputs)

    @cached_property
    def draws(self) -> list[Tensor]:
        """What the method draws to predict a row, drawn once; nearly always nothing."""
        preprocessing = self.card.preprocessing
        zeros = preprocessing.behind_encoder.zeros(1)
        row = preprocessing(zeros, *preprocessing.scale_and_offset)
        with torch.no_grad(), _ONE_AT_A_TIME, one_thread():
            return draws_of(
                lambda inputs: self.prediction(self.state, inputs),
                row,
                generator("draws of a model", self.card.state_sha256),
            )

    def save(self, folder: str | Path) -> None:
        """Tensors and card; a kill in between leaves the model that was there before."""
        _check_named(self.card)
        folder = Path(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name, packed = TENSORS.format(self.card.state_sha256[:12]), pack(self.state)
        files = {name: packed, **self.word_file()}
        for file, content in files.items():
            write_atomic(folder / file, content)
        self.card.write(folder, files)
        for old in folder.glob(TENSORS.format("*")):
            if old.name != name:
                old.unlink(missing_ok=True)

    def word_file(self) -> dict[str, bytes]:
        """The words of a model of text, a line each, as a file by its name."""
        return {WORDS: "".join(f"{word}\n" for word in self.words).encode()} if self.words else {}

    @classmethod
    def load(cls, folder: str | Path, imports: Sequence[str] | None = None) -> PersonalModel:
        """From the folder that `save`, `fedloom export --format safetensors` or a deployed site
        left.

        `imports` are the files or modules with the method and network, and the folders or hub
        models that the network reads. A model with such is refused without them: what its card
        names would be run or read, whoever wrote the card.
        """
        card = Card.read(Path(folder))
        network = _network(card)
        needed, reads = named_in(network), outside_places(network)
        named = {plain_path(spec) for spec in imports or ()}
        unnamed = [spec for spec in needed if plain_path(spec) not in named]
        if unnamed or (card.imports and imports is None):
            own = ", ".join([*card.imports, *needed])
            raise BadInput(
                f"the model in {folder} needs code or files of its own ({own}); look at them, and"
                " name what may be used: PersonalModel.load(folder, imports=[...]), or --import"
            )
        name = next((n for n in card.files if n.endswith(".safetensors")), None)
        if name is None or "model.py" in card.files:
            raise BadInput(
                f"{folder} holds a model in a form that needs no fedloom ({', '.join(card.files)});"
                " use it as its card says, or export with --format safetensors"
            )
        load_extensions(spec for spec in imports or () if spec not in reads)
        packed = card.content(Path(folder), name, _MOST_BYTES)
        try:
            state = place_state(unpack(packed), torch.device("cpu"))
            with counted(_most_numbers(state), "that the model's tensors allow; restore its card"):
                program = _program(card, network)
            model = cls(program, state, card, _words(card, Path(folder)))
            model.predict(card.preprocessing.zeros(1))
        except FedloomError:
            raise
        except Exception as e:  # tensors that do not fit make torch raise errors of many kinds
            raise BadInput(
                f"the model in {folder} cannot be used ({type(e).__name__}:"
                f" {str(e).partition(chr(10))[0]}); its tensors do not fit its card: restore both"
            ) from None
        model.warn()
        return model

    def warn(self) -> None:
        """Log that the run's result is not of this model, where it is not."""
        if self.card.warning:
            log.warning("%s", self.card.warning)


def _words(card: Card, folder: Path) -> tuple[str, ...]:
    """The words of a model's folder, if it has any."""
    if WORDS not in card.files:
        return ()
    words = tuple(card.content(folder, WORDS, _MOST_WORDS).decode(errors="replace").split("\n"))
    if len(words) - 1 + FIRST != card.vocabulary:
        raise BadInput(
            f"{folder / WORDS} has {len(words) - 1} words, and the model's card wants"
            f" {card.vocabulary - FIRST}; restore both"
        )
    return words[:-1]


@contextmanager
def _naming_unknown_ids(card: Card, rows: Tensor) -> Iterator[None]:
    """A network may know more token ids than its training data had, so torch is the judge."""
    try:
        yield
    except (IndexError, RuntimeError) as e:
        if card.dtype != "int64" or int(rows.max()) < card.vocabulary:
            raise
        raise BadInput(
            f"the model cannot read the token id {int(rows.max())} ({str(e).splitlines()[0]}); give"
            f" ids as its training data had them, from 0 to {card.vocabulary - 1}"
        ) from None


def _check_named(card: Card) -> None:
    """Whoever reads the folder builds method and network by their expressions."""
    network = _network(card)
    place = Place.of(network)
    try:
        parse_one(network if place is None else place.what)
    except FedloomError:
        raise BadInput(
            f"the network of this model was a Python object ({network}) and cannot be built again"
            " from a folder; export it with --format torch, or run with model='FILE.py:NAME'"
        ) from None


def named_in(network: str) -> list[str]:
    """The code that a network's expression names, and the folders and hub models that it reads."""
    place = Place.of(network)
    return [*([place.where] if place else []), *outside_places(network)]


def _network(card: Card) -> str:
    """The expression of the client's own network; several are dealt to the clients in turn."""
    expressions = card.network.split("|")
    return expressions[card.client % len(expressions)].strip()


def _program(card: Card, network: str) -> Program:
    net = build_model(
        network,
        tuple(card.encoded or card.shape),
        card.outputs,
        seed=card.seed,
        vocabulary=card.vocabulary,
        fewest=1,
        fields=tuple(card.fields),
    )
    task = parse_task(card.task)
    return Program(parse_method(card.method), net, card.clients, card.seed, task)


def _most_numbers(state: State) -> int:
    """Numbers of which a network with these tensors is made at most, parts that a method replaces
    and the head that it copies included."""
    return 4 * sum(slices_of(state).values()) + 10**6


def slices_of(state: State) -> dict[str, int]:
    """Slice -> how many numbers it holds."""
    names = [METHOD, *(name for name in state if name != METHOD)]
    return {name: sum(v.numel() for v in state[name].values()) for name in names}
