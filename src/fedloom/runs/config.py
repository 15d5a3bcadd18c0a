"""The configuration of a run: flat keys from a TOML file, flags and `key=value` overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from fedloom.core.protocol import Protocol, parse_protocol
from fedloom.core.settings import OptimizerName, ServerOptimizerName
from fedloom.engines import ALONE, ENGINES
from fedloom.errors import BadInput, suggestion
from fedloom.expression import literal
from fedloom.extensions import Place, is_file, load_extensions
from fedloom.files import read_toml

if TYPE_CHECKING:  # a configuration is read without torch
    from fedloom.core.task import Task

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that says something."""
Model = TypeVar("Model", bound=BaseModel)


def _listed(value: Any) -> Any:
    """A list that was written as text, with commas."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""A list, also as `a, b`: Flower's configuration and `key=value` have no lists."""


MOST_ROUNDS = 100_000
"""Of one run. Every round is planned before the first begins, so that a number nobody can wait for
would already take all memory, here and at every site of a deployment."""
MOST_CLIENTS = 10_000_000
OF_PACKAGE = "pretrained:"
"""In `start`: before the name of a network whose pretrained weights a package brings."""


class RunConfig(BaseModel):
    """Everything that decides a run's result, and where it is written.

    Training settings that are None are left to the method (`Opt` and `ServerOpt` have the
    defaults); those that a method has of its own, as in `fedper(lr=0.1)`, win over these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    imports: Names = Field(
        (), description="a file.py or module with methods, models or data of your own"
    )
    method: Words = Field("fedavg", description="expression, e.g. 'fedavg + proximal(mu=0.01)'")
    data: Words = Field("digits", description="a known name, or a path to your own data")
    label: Words | None = Field(
        None, description="label column, or several, 'a, b'; by default label, target or y"
    )
    client: Words | None = Field(
        None, description="column that says who holds a row; by default user or client"
    )
    domain: Words | None = Field(
        None, description="column that says where a row comes from; by default domain"
    )
    inputs: Words | None = Field(
        None, description="input columns, e.g. 'age, dose'; by default all others"
    )
    task: Words = Field(
        "auto",
        description="classification, binary, multilabel, regression or one of your own, e.g."
        " 'classification(smoothing=0.1)'; auto: by the targets",
    )
    metrics: Words | None = Field(
        None, description="further metrics to score, e.g. 'auroc, f1'; the task's own always are"
    )
    partition: Words = Field("dirichlet(alpha=0.1)", description="expression, or a saved .json")
    clients: int | None = Field(
        None,
        ge=1,
        le=MOST_CLIENTS,
        description="number of clients; by default 20, or as many as the data has",
    )
    split: Words = Field("merged(train=0.75)", description="how rows become train, val and test")
    shift: Words | None = Field(None, description="expression, e.g. 'rotate(step=15)'")
    augment: Words | None = Field(None, description="expression, e.g. 'crop(pad=4) + flip'")
    normalize: Literal["auto", "half", "channel", "site", "none"] = Field(
        "auto", description="half, channel, site (each client by its own rows) or none"
    )
    image_size: int | None = Field(None, ge=1, le=10**5, description="resize images to this square")
    encoder: Words | None = Field(
        None,
        description="pretrained network, and its part, whose outputs are the inputs, e.g."
        " efficientnet_lite0/stage6",
    )
    partition_seed: int = Field(0, description="seed of partition, split and shift")
    newcomers: int = Field(
        0, ge=0, le=MOST_CLIENTS, description="clients kept out of training, tested at the end"
    )

    model: Words = Field("auto", description="expression, e.g. cnn4; auto: what suits the data")
    start: Words | None = Field(
        None,
        description="begin with a .safetensors file's weights, a package's"
        " (pretrained:efficientnet_lite0), or with a run folder's model",
    )
    start_without: Words | None = Field(
        None, description="tensors that start leaves as drawn, e.g. 'head.*'"
    )
    rounds: int = Field(50, ge=1, le=MOST_ROUNDS, description="rounds of training")
    participation: float = Field(1.0, gt=0, le=1, description="share of clients in a round")
    epochs: int | None = Field(None, ge=1, le=10**6, description="local epochs; by default 1")
    steps: int | None = Field(None, ge=1, le=10**9, description="local steps, in place of epochs")
    batch_size: int | None = Field(
        None, ge=1, le=10**9, description="rows of a batch; by default 10"
    )
    lr: float | None = Field(None, gt=0, description="learning rate; by default 0.05")
    optimizer: OptimizerName | None = Field(
        None, description="sgd, adam, adamw, adagrad or rmsprop; by default sgd"
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="of sgd, rmsprop; by default 0")
    weight_decay: float | None = Field(None, ge=0, description="by default 0")
    beta1: float | None = Field(None, ge=0, lt=1, description="of adam, adamw; if not set, 0.9")
    beta2: float | None = Field(
        None, ge=0, lt=1, description="of adam, adamw (0.999), rmsprop (0.99)"
    )
    eps: float | None = Field(None, ge=0, description="of all optimizers but sgd")
    keep_state: bool | None = Field(
        None, description="clients keep their optimizer's state from round to round"
    )
    clip: float | None = Field(
        None, ge=0, description="bound on the gradient's norm; by default none"
    )
    decay: float | None = Field(
        None, gt=0, description="learning rate factor per round; by default 1"
    )
    drop_last: bool | None = Field(None, description="leave out incomplete batches")
    replacement: bool | None = Field(None, description="draw batches with replacement")
    server_optimizer: ServerOptimizerName | None = Field(
        None, description="sgd, momentum, adagrad, adam or yogi; by default sgd"
    )
    server_lr: float | None = Field(None, ge=0, description="of the server; by default 1")
    server_beta1: float | None = Field(
        None, ge=0, lt=1, description="of the server; if not set, 0.9, of adagrad 0"
    )
    server_beta2: float | None = Field(
        None, ge=0, lt=1, description="of the server's adam, yogi; by default 0.99"
    )
    server_tau: float | None = Field(
        None, gt=0, description="of the server's adagrad, adam, yogi; by default 0.001"
    )
    aggregation: Words = Field(
        "mean",
        description="mean, or a rule that bears hostile clients: median, trimmed_mean(share=0.2),"
        " krum(share=0.2), norm_bound",
    )
    secure_aggregation: Words | None = Field(
        None,
        description="mask uploads, so that the server learns only their sum: true, or e.g."
        " 'pairwise(clip=8.0, bits=22)'",
    )
    compression: Words = Field(
        "none",
        description="none, or smaller uploads: quantize(bits=8), top_k(share=0.01)",
    )
    hostile: Words | None = Field(
        None,
        description="clients that work against the run, e.g. 'sign_flip(share=0.2)', scaled,"
        " collude, label_flip; for simulations",
    )
    privacy: Words | None = Field(
        None,
        description="differential privacy: 'client(clip=1, noise=1, delta=1e-5, budget=0)' of"
        " uploads, or 'example(...)' of gradients",
    )

    protocol: Words = Field(
        "fedloom",
        description="fedloom, cohort, dbe, fedbr, dualfed, fedcr or fedpac; with changes:"
        " 'fedpac(moment=received)'",
    )
    eval_every: int = Field(1, ge=1, description="rounds between evaluations")
    early_stop: int | None = Field(
        None, ge=1, description="stop when the best evaluation is so many evaluations old"
    )
    diagnose: Words | None = Field(
        None, description="diagnostics to record on the way, e.g. 'cka,separation'"
    )
    diagnose_every: int = Field(10, ge=1, description="rounds between diagnostics")
    seed: int = Field(0, description="seed of everything but the partition")

    engine: Words = Field("inline", description=", ".join(ENGINES))
    workers: int = Field(2, ge=1, le=10**4, description="processes of the pool, actors of ray")
    ray_address: Words | None = Field(
        None, description="a running Ray cluster; by default one is started here"
    )
    min_clients: int = Field(1, ge=1, description="fewest answers that make a round count")
    memory: float = Field(
        1024,
        gt=0,
        le=10**9,
        description="MB for what clients keep, beyond it they live on disk; and again for outputs"
        " of stages that nobody trains",
    )
    device: Words = Field("cpu", description="cpu, cuda, cuda:1, mps ...")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")
    history: float = Field(
        32, ge=0, description="MB of earlier checkpoints to keep, for fedloom verify to begin at"
    )
    out: Words | None = Field(None, description="run folder; by default runs/<time>-<method>")
    title: Words | None = Field(
        None, description="what tables call the run; by default the method as written"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_clients_are_the_clients(cls, settings: Any) -> Any:
        """Whoever names the column of clients or domains, and no partition, divides by it."""
        if isinstance(settings, dict) and settings.get("partition") is None:
            for key, partition in (("client", "by_user"), ("domain", "by_domain")):
                if settings.get(key) is not None:
                    return {**settings, "partition": partition}
        return settings

    @field_validator("normalize", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: Any) -> Any:
        return "none" if value is None else value  # `normalize=none` reads as a value, not a word

    @field_validator("protocol", mode="before")
    @classmethod
    def _object_as_expression(cls, value: Any) -> Any:
        if isinstance(value, Protocol):
            return str(value)
        if isinstance(value, Mapping):  # a table [protocol] of a TOML file
            raise BadInput(
                "protocol is an expression, a preset and what differs from it; write for instance"
                " protocol = 'fedpac(moment=received)'"
            )
        if isinstance(value, str) and value.strip():
            parse_protocol(value)  # what is misspelt should not wait for the data to be read
        return value

    @field_validator("privacy", "secure_aggregation", "hostile", mode="before")
    @classmethod
    def _none_is_no_expression(cls, value: Any) -> Any:
        """As a flag; `compression = none` is a kind of its own."""
        return None if isinstance(value, str) and value.strip().lower() == "none" else value

    @field_validator("secure_aggregation", mode="before")
    @classmethod
    def _true_is_the_usual_kind(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            value = value.strip().lower() == "true"  # a flag of the command line is text
        return ("pairwise" if value else None) if isinstance(value, bool) else value

    @field_validator("task", mode="before")
    @classmethod
    def _task_as_expression(cls, value: Any) -> Any:
        if isinstance(value, str | None) or not hasattr(value, "targets"):
            return value
        from fedloom.core.task import check_registered

        return str(check_registered(value))

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_as_text(cls, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list | tuple) else value

    @property
    def normalization(self) -> Literal["half", "channel", "site", "none"] | None:
        """What `load` takes; None: by the data."""
        return None if self.normalize == "auto" else self.normalize

    @property
    def runs_at_a_time(self) -> int:
        """Of several runs: as many as the workers of an engine that has none of its own."""
        return self.workers if self.engine in ALONE else 1

    @classmethod
    def read(
        cls,
        file: Path | None = None,
        overrides: Iterable[str] = (),
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """File, then `key=value` overrides, then flags; what comes later wins."""
        settings = {} if file is None else read_toml(file)
        settings |= dict(_override(text) for text in overrides)
        imports = (*_listed(settings.get("imports", ())), *((flags or {}).get("imports") or ()))
        settings |= {k: v for k, v in (flags or {}).items() if v is not None}
        return cls.checked({**settings, "imports": imports})

    @classmethod
    def checked(cls, settings: Mapping[str, Any]) -> Self:
        """Validated; the first thing that is wrong becomes one sentence."""
        for key, value in settings.items():
            if key not in cls.model_fields:
                if isinstance(value, dict):
                    raise BadInput(f"keys are flat: write those of [{key}] without that line")
                raise BadInput(f"unknown key {key!r}{suggestion(key, cls.model_fields)}")
        return checked(cls, settings)

    def imported(self) -> Self:
        """The same after importing what it names, with the digests of files.

        Of a model `net.py:Net` the file becomes one of the imports, and the model `net:Net`.
        """
        models = [word.strip() for word in self.model.split("|")]
        files = [place.where for place in map(Place.of, models) if place and is_file(place.where)]
        imports = load_extensions([*self.imports, *files])
        return self.changed(imports=imports, model=" | ".join(map(_by_stem, models)))

    def changed(self, **values: Any) -> Self:
        """The same with other values, validated."""
        return self.checked({**self.model_dump(), **values})


class RunSettings(TypedDict, total=False):
    """The keys of `RunConfig` that `run` and `compare` take by name, for type checkers; a test
    keeps the two alike."""

    imports: Sequence[str]
    label: str | None
    client: str | None
    domain: str | None
    inputs: str | None
    task: str | Task
    metrics: str | Sequence[str] | None
    partition: str
    clients: int | None
    split: str
    shift: str | None
    augment: str | None
    normalize: Literal["auto", "half", "channel", "site", "none"]
    image_size: int | None
    encoder: str | None
    partition_seed: int
    newcomers: int
    start: str | None
    start_without: str | None
    rounds: int
    participation: float
    epochs: int | None
    steps: int | None
    batch_size: int | None
    lr: float | None
    optimizer: OptimizerName | None
    momentum: float | None
    weight_decay: float | None
    beta1: float | None
    beta2: float | None
    eps: float | None
    keep_state: bool | None
    clip: float | None
    decay: float | None
    drop_last: bool | None
    replacement: bool | None
    server_optimizer: ServerOptimizerName | None
    server_lr: float | None
    server_beta1: float | None
    server_beta2: float | None
    server_tau: float | None
    aggregation: str
    secure_aggregation: str | bool | None
    compression: str
    hostile: str | None
    privacy: str | None
    protocol: str | Protocol
    eval_every: int
    early_stop: int | None
    diagnose: str | None
    diagnose_every: int
    seed: int
    engine: str
    workers: int
    ray_address: str | None
    min_clients: int
    memory: float
    device: str
    checkpoint_every: int
    history: float
    out: str | None
    title: str | None


def _by_stem(model: str) -> str:
    """`folder/net.py:Net` as `net:Net`, under which an imported file is found."""
    place = Place.of(model)
    if place is None or not is_file(place.where):
        return model
    return f"{Path(place.where).stem}:{place.what}"


def checked(model: type[Model], settings: Mapping[str, Any]) -> Model:
    """A model of these values; the first that will not do becomes one sentence."""
    try:
        return model(**settings)
    except ValidationError as e:
        first = e.errors()[0]
        reason = first["msg"].lower().replace("input should", "it should")
        raise BadInput(f"{first['loc'][0]} = {first['input']!r} will not do: {reason}") from None


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"{text!r} is not an override; write key=value, for instance rounds=20")
    return key.strip().replace("-", "_"), literal(value.strip())
