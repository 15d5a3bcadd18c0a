"""A network as a small tree of named stages whose weights are always an argument.

`net(w, x)` returns every stage's output by name. The modules inside are a template: before a stage
runs, its slots are pointed at the tensors of `w`, which costs well under a microsecond per tensor,
so a second model, a frozen teacher or a mixture is one more tree and never a copied module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.core.fields import Fields, not_numbers
from fedloom.core.flat_rows import arguments, empty_rows
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from fedloom.errors import BadInput, UnknownName

INPUT = "input"
METHOD = "model"
"""Owner of the net's own stages and of the method's: the slice they travel in."""

_Slot = tuple[dict[str, Tensor | None], str, str]  # a module's dict, the leaf's name in it, the key


@dataclass(frozen=True)
class _KnownOutputs:
    """Outputs of stages for one input, which no hook has changed since."""

    x: Tensor
    version: int
    outputs: Mapping[str, Tensor]
    fit: Callable[[Tree], bool]

    def are_of(self, w: Tree, x: Tensor) -> bool:
        """Are they those of this model and this input?"""
        return x is self.x and x._version == self.version and self.fit(w)


def _trains(stage: str, train: bool | Collection[str]) -> bool:
    return train if isinstance(train, bool) else stage in train


class Net(nn.Module):
    """Named stages, each reading another one's output.

    >>> net = Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2))
    >>> {name: tuple(z.shape) for name, z in net(net.tree(), torch.zeros(5, 4)).items()}
    {'input': (5, 4), 'body': (5, 3), 'head': (5, 2)}
    """

    shape: tuple[int, ...]
    """Shape of one input."""
    input_dtype: torch.dtype = torch.float32
    """Type of the inputs; networks that read token ids set int64."""
    fields: Fields = ()
    """How a flat row divides into what the first stages are called with; empty: they read the row
    itself."""
    feature: str
    """The stage the heads read; moved by `insert`."""
    representation: str
    """The stage the head read when the net was built: the raw features, whatever is inserted."""
    logits: str
    """The stage of the prediction."""
    keys: tuple[str, ...]
    """Every tensor of the model, buffers included."""
    params: frozenset[str]
    """The keys that can be trained."""
    initial: Tree
    """Where every client and the server begin: what the module itself holds, also after weights
    were loaded into it (same memory); a call with other weights does not change them."""
    reads: dict[str, str | None]
    """Stage -> the stage it reads; None for a side stage."""
    owner: dict[str, str]
    """Stage -> the part that added it; "model" for the net's own and the method's."""
    tools: dict[str, nn.Module]
    """Modules without a stage that a part put here in `extend`."""
    predicted: Callable[[Tensor], Tensor]
    """From the last stage's output to a prediction: the task's, softmax unless a program has
    another."""
    __call__: Callable[..., dict[str, Tensor]]

    def __init__(self, shape: tuple[int, ...], **stages: nn.Module) -> None:
        super().__init__()
        if len(stages) < 2:
            raise BadInput("a net needs at least two stages, for instance body=... and head=...")
        self.shape = tuple(shape)
        self.reads, self.owner = {}, {}
        self.tools, self.initial = {}, {}
        self._adding = METHOD
        self.predicted = _probabilities
        self._frozen: set[str] = set()
        self._bound: dict[str, Tree] = {}
        """The weights that a stage ran with last."""
        self._known_outputs: _KnownOutputs | None = None
        previous = INPUT
        for name, module in stages.items():
            self.add(name, module, reads=previous)
            self.feature, previous = previous, name
        self.representation, self.logits = self.feature, previous

    # ------------------------------------------------------------------ building

    def add(self, name: str, module: nn.Module, reads: str | None) -> Net:
        """Add a branch that reads a stage; `reads=None`: a side stage, run only by `stage`."""
        if name in self.reads:
            raise BadInput(f"the net already has a stage {name!r}; use replace")
        if name == INPUT or "." in name or hasattr(self, name):
            raise BadInput(f"{name!r} cannot be a stage's name")
        if reads is not None and reads != INPUT:
            self._known(reads)
        self.owner[name] = self._adding
        self._put(name, module, reads)
        return self

    def insert(self, name: str, module: nn.Module, after: str | None = None) -> Net:
        """Add a stage between one (default: the feature) and everything that reads it.

        Inserted after the feature, it becomes the feature.
        """
        after = self.feature if after is None else self._known(after)
        readers = [k for k, source in self.reads.items() if source == after]
        self.add(name, module, reads=after)
        for k in readers:
            self.reads[k] = name
        self._forget()
        if after == self.feature:
            self.feature = name
        return self

    def replace(self, name: str, module: nn.Module, reads: str | None = None) -> Net:
        """Put another module under the same name (a fixed head, another width)."""
        self._known(name)
        self._put(name, module, self.reads[name] if reads is None else self._known(reads))
        return self

    def reconnect(self, name: str, reads: str) -> Net:
        """Have a stage read another one, with the module and the weights it has."""
        self.reads[self._known(name)] = self._known(reads)
        self._forget()
        return self

    def freeze(self, pattern: str) -> Net:
        """Take tensors out of all training: they stay as they are, for every method and phase."""
        self._frozen |= self.match(pattern) & self.params
        self._index()
        return self

    def take_in(self, name: str) -> Net:
        """Count the tensors as the model's that a stage's module got since it was put here."""
        self._index()
        added = {
            key: _plain(slots[leaf])
            for slots, leaf, key in self._slots_of[self._known(name)]
            if key not in self.initial
        }
        known = self.initial | added
        self.initial = {key: known[key] for key in self.keys}
        return self

    @contextmanager
    def adding_for(self, owner: str) -> Iterator[None]:
        """Stages added inside belong to this part."""
        self._adding, before = owner, self._adding
        try:
            yield
        finally:
            self._adding = before

    def _put(self, name: str, module: nn.Module, reads: str | None) -> None:
        frozen = {f"{name}.{k}" for k, p in module.named_parameters() if not p.requires_grad}
        self._frozen = {k for k in self._frozen if stage_of(k) != name} | frozen
        self.add_module(name, module)
        self.reads[name] = reads
        self._index()
        others = {k: v for k, v in self.initial.items() if k in self.keys and stage_of(k) != name}
        fresh = {
            key: _plain(module_dict[leaf])
            for module_dict, leaf, key in self._slots_of[name]
            if stage_of(key) == name
        }
        self.initial = others | fresh

    def _index(self) -> None:
        """Where every tensor sits. A tied tensor keeps one key and is bound in all its places."""
        first: dict[int, str] = {}
        self._slots_of: dict[str, list[_Slot]] = {name: [] for name in self.reads}
        params: set[str] = set()
        for prefix, module in self.named_modules(remove_duplicate=False):
            for slots, trainable in ((module._parameters, True), (module._buffers, False)):
                for leaf, value in slots.items():
                    if value is None:
                        continue
                    key = first.setdefault(id(value), f"{prefix}.{leaf}")
                    self._slots_of[prefix.split(".")[0]].append((slots, leaf, key))
                    if trainable:
                        params.add(key)
        self.params = frozenset(params - self._frozen)
        self.keys = tuple(dict.fromkeys(first.values()))
        norms = [p for p, m in self.named_modules() if isinstance(m, _BatchNorm)]
        statistics = ("running_mean", "running_var", "num_batches_tracked")
        self._tags = {
            "@bn": [f"{p}.*" for p in norms],
            "@stats": [f"{p}.{leaf}" for p in norms for leaf in statistics],
        }
        self._batch_norm_in = {p.split(".")[0] for p in norms}
        self._matches: dict[str, frozenset[str]] = {}
        self._forget()

    def _forget(self) -> None:
        """Drop what was computed for the stages as they were before a change."""
        self._routes: dict[str | None, list[tuple[str, str]]] = {}
        self._shapes: dict[str, Size] = {}
        self._drawing: dict[str, bool] = {}
        self._widest_output: int | None = None

    def _known(self, stage: str) -> str:
        if stage not in self.reads:
            raise UnknownName("stage", stage, self.reads)
        return stage

    # ------------------------------------------------------------------ what can be looked up

    def match(self, pattern: str) -> frozenset[str]:
        """Keys by globs, left to right: "body.* head.* !@stats".

        `@bn` is every tensor of a BatchNorm layer and `@stats` its running statistics, found by
        the layer's type, so that a `downsample.1` is not missed.
        """
        if pattern not in self._matches:
            keys: set[str] = set()
            for word in pattern.split():
                globs = self._tags.get(word.lstrip("!"), [word.lstrip("!")])
                hits = {k for k in self.keys if any(fnmatchcase(k, g) for g in globs)}
                keys = keys - hits if word.startswith("!") else keys | hits
            self._matches[pattern] = frozenset(keys)
        return self._matches[pattern]

    def is_parameter(self, key: str) -> bool:
        """True of a parameter, trained or frozen; False of a buffer, as running statistics are."""
        return key in self.params or key in self._frozen

    def tree(self, pattern: str = "*") -> Tree:
        """A copy of the initial values under these keys, whatever weights the net ran last."""
        self._take_over()
        wanted = self.match(pattern)
        return {k: v.clone() for k, v in self.initial.items() if k in wanted}

    def fresh(self, *key: int | str) -> Tree:
        """Another random start of the same net (IFCA's k models, FedEM's M learners).

        Layers without `reset_parameters` keep their initial values, and so do frozen tensors.
        """
        tree = self.tree()
        for name in self.reads:
            self._bind(tree, name)
        with rng_scope("fresh", *key), torch.no_grad():
            for module in self.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        self.unbind()
        return {k: (self.initial[k] if k in self._frozen else v).clone() for k, v in tree.items()}

    def shape_of(self, stage: str) -> Size:
        """Shape of one sample's output at a stage."""
        if stage not in self._shapes:
            out = self._of_empty_rows(self._known(stage), 2)
            self._shapes |= {name: z.shape[1:] for name, z in out.items()}
        return self._shapes[stage]

    @property
    def widest_output(self) -> int:
        """How many numbers one sample is at its widest, on its way to the logits: as the input, or
        as any module's output.

        >>> Net((4,), body=nn.Linear(4, 9), head=nn.Linear(9, 3)).widest_output
        9
        """
        if self._widest_output is None:
            widths, rows = [math.prod(self.shape)], 2

            def note(_module: nn.Module, _inputs: Any, out: Any) -> None:
                if isinstance(out, Tensor):
                    widths.append(out.numel() // rows)

            hooks = [module.register_forward_hook(note) for module in self.modules()]
            try:
                self._of_empty_rows(self.logits, rows)
            finally:
                for hook in hooks:
                    hook.remove()
            self._widest_output = max(widths)
        return self._widest_output

    def _of_empty_rows(self, stage: str, count: int) -> dict[str, Tensor]:
        """Outputs up to a stage, of the initial values, for rows of zeros."""
        kinds = (v.dtype for v in self.initial.values() if v.is_floating_point())
        floating = self.input_dtype.is_floating_point
        dtype = next(kinds, self.input_dtype) if floating else self.input_dtype
        x = empty_rows(self.fields, count) if self.fields else torch.zeros(count, *self.shape)
        with torch.no_grad(), rng_scope("shape"):
            out = self(self.tree(), x.to(dtype), want=stage)
        self.unbind()
        return out

    @property
    def not_numbers(self) -> str:
        """What keeps inputs from being averaged or made of noise; empty where nothing does."""
        return not_numbers(self.fields) if self.input_dtype.is_floating_point else "token ids"

    def draws(self, stage: str) -> bool:
        """True if the stage draws at random in evaluation mode too: a layer has `draws = True`."""
        if stage not in self._drawing:
            layers = self.get_submodule(stage).modules()
            self._drawing[stage] = any(getattr(m, "draws", False) is True for m in layers)
        return self._drawing[stage]

    def moving(self, trained: Collection[str]) -> frozenset[str]:
        """Stages in training mode while some are trained: those, and what has no tensors of its own
        (dropout) behind them."""
        stages = set(trained)
        for name, source in self._route(None):
            if not self._slots_of[name] and (source in stages or source == INPUT):
                stages.add(name)
        return frozenset(stages)

    def path_to(self, stage: str) -> list[str]:
        """The stages from the input to this one, in the order they run."""
        path: list[str] = []
        name: str | None = self._known(stage)
        while name is not None and name != INPUT:
            path.insert(0, name)
            name = self.reads[name]
        return path

    # ------------------------------------------------------------------ running

    def forward(
        self,
        w: Tree,
        x: Tensor,
        train: bool | Collection[str] = False,
        want: str | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Every stage's output by name, batch first; with `want`, only what that stage needs.

        `train`: which stages run in training mode (all, none, or those named). `given`: stage
        outputs that are known already and are not computed again.
        """
        out = {INPUT: x, **(given or {})}
        known = self._known_outputs
        if known is not None and known.are_of(w, x):
            out |= {k: z for k, z in known.outputs.items() if not _trains(k, train)}
        for name, source in self._route(want):
            if name not in out:
                out[name] = self._run(w, name, out[source], train)
        return out

    @contextmanager
    def knowing(
        self, x: Tensor, outputs: Mapping[str, Tensor], fit: Callable[[Tree], bool]
    ) -> Iterator[None]:
        """Inside, stages whose outputs for this very input are known are not run on it, unless in
        training mode. `fit` says of a model whether the outputs are its own."""
        before = self._known_outputs
        self._known_outputs = _KnownOutputs(x, x._version, outputs, fit) if outputs else None
        try:
            yield
        finally:
            self._known_outputs = before

    def stage(self, w: Tree, name: str, z: Tensor, train: bool | Collection[str] = False) -> Tensor:
        """One stage alone, on any input (side stages, heads on generated features)."""
        return self._run(w, self._known(name), z, train)

    def _ready(self, w: Tree, name: str, train: bool | Collection[str] = False) -> nn.Module:
        """A stage's module with these weights in it, until the stage runs with others."""
        self._bind(w, self._known(name))
        return self._in_mode(name, _trains(name, train))

    def _route(self, want: str | None) -> list[tuple[str, str]]:
        """(stage, what it reads) in running order; computed once."""
        if want not in self._routes:
            lasts = [k for k, source in self.reads.items() if source] if want is None else [want]
            names = dict.fromkeys(name for last in lasts for name in self.path_to(last))
            self._routes[want] = [(name, self.reads[name] or INPUT) for name in names]
        return self._routes[want]

    def _run(self, w: Tree, name: str, z: Tensor, train: bool | Collection[str]) -> Tensor:
        self._bind(w, name)
        training = _trains(name, train)
        if training and len(z) == 1 and name in self._batch_norm_in:
            training = False  # BatchNorm cannot normalise a single sample
        module = self._in_mode(name, training)
        if self.fields and self.reads[name] == INPUT:
            by_position, by_name = arguments(self.fields, z)
            return module(*by_position, **by_name)  # type: ignore[no-any-return]
        return module(z)  # type: ignore[no-any-return]

    def _in_mode(self, name: str, training: bool) -> nn.Module:
        module: nn.Module = self._modules[name]  # type: ignore[assignment]
        if module.training != training:
            module.train(training)
        return module

    def _bind(self, w: Tree, name: str) -> None:
        """Point the stage's slots at the tree; a missing key is an error, never a stale tensor."""
        for slots, leaf, key in self._slots_of[name]:
            value = w[key]
            if slots[leaf] is not value:
                slots[leaf] = value
        self._bound[name] = w

    def unbind(self) -> None:
        """Point the slots at the initial values again, whatever the net ran last."""
        self._take_over()
        for name in self.reads:
            self._bind(self.initial, name)
        self._bound = {}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights as of any module; a run then begins with them."""
        self.unbind()
        return super().load_state_dict(state_dict, strict)  # copying assigns the same values

    def _take_over(self) -> None:
        """Begin with parameters that somebody assigned to the module (`net.head.weight = ...`)."""
        for name in self.reads:
            bound = self._bound.get(name, {})
            for slots, leaf, key in self._slots_of[name]:
                value = slots[leaf]
                if isinstance(value, nn.Parameter) and value is not bound.get(key):
                    self.initial[key] = _plain(value)

    def __getstate__(self) -> dict[str, object]:
        """For copies and worker processes: the initial values, not the weights it ran last."""
        self.unbind()
        return self.__dict__.copy()


def _probabilities(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _plain(value: Tensor | None) -> Tensor:
    """A slot's tensor without its gradient, in the same memory."""
    assert value is not None  # such slots have no key
    return value.detach() if value.requires_grad else value


def stage_of(key: str) -> str:
    """The stage a model key belongs to.

    >>> stage_of("body.0.weight")
    'body'
    """
    return key.split(".", 1)[0]
