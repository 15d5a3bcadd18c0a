"""Any module as a net: cut it before its head, and prove that nothing changed.

The cut is made on a copy. The net and the module are then run side by side, in both modes and with
other weights; if their outputs differ, the module cannot be cut at this layer: the error says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.fields import Fields
from fedloom.core.flat_rows import arguments, made_up_rows
from fedloom.core.net import Net
from fedloom.core.rng import generator, rng_scope
from fedloom.errors import BadInput, UnknownName

_PROBES = 4
_SCALE = 1.25
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def split(
    module: nn.Module, head: str, *, shape: tuple[int, ...], fields: Fields = (), **stages: str
) -> Net:
    """A net whose stage `head` is the named submodule and whose `body` is all that comes before.

    The module may be of any kind: its `forward` is kept, with the head taken out. The module
    itself is not touched, and the net begins with its present weights.

    Args:
        head: the submodule that makes the output, by its path (`fc`, `classifier.2`).
        shape: shape of one input.
        fields: of data with several inputs or rows of unlike length (`data.fields`): the module is
            called with one argument for each.
        stages: further cuts, in order: `early="conv1"` is a stage of everything up to and
            including `conv1`, and `body` is what remains before the head. Only for modules that
            run their children one after another.

    >>> mine = nn.Sequential(OrderedDict(conv=nn.Linear(4, 3), act=nn.ReLU(), fc=nn.Linear(3, 2)))
    >>> net = split(mine, head="fc", shape=(4,))
    >>> net.keys
    ('body.conv.weight', 'body.conv.bias', 'head.weight', 'head.bias')
    >>> list(split(mine, head="fc", shape=(4,), early="conv").reads)
    ['early', 'body', 'head']
    """
    reference = deepcopy(module).cpu()
    for path in (head, *stages.values()):
        _require(reference, path)
    if fields and stages:
        raise BadInput(
            f"{_name(module)} takes several inputs and cannot be cut into {', '.join(stages)}; name"
            " only its head"
        )
    probe, expected = _probe(reference, tuple(shape), fields)
    if not isinstance(expected, Tensor) or expected.ndim != 2 or len(expected) != len(probe):
        raise BadInput(
            f"{_name(module)} must return logits [n, classes] for a batch of n, it returns "
            f"{_described(expected)}; wrap it in a module that returns the logits alone"
        )
    copied = deepcopy(reference)
    parts = _chain(copied, head, stages) if stages else _body_and_head(copied, head)
    net = Net(shape, **parts)
    net.input_dtype, net.fields = probe.dtype, fields
    _verify(net, reference, probe, head, bool(stages))
    net.unbind()
    return net


def find_head(module: nn.Module, classes: int) -> str:
    """The path of the last linear layer with one output per class."""
    paths: list[str] = [
        path
        for path, m in module.named_modules()
        if path and isinstance(m, nn.Linear) and m.out_features == classes
    ]
    if not paths:
        raise BadInput(
            f"{_name(module)} has no linear layer with {classes} outputs inside; name its last "
            f"layer with fedloom.models.split(module, head=..., shape=...)"
        )
    return paths[-1]


# ---------------------------------------------------------------------- cutting


def _require(module: nn.Module, path: str) -> None:
    paths = [p for p, _ in module.named_modules(remove_duplicate=False) if p]
    if path not in paths:
        raise UnknownName(f"submodule of {_name(module)}", path, paths)


def _body_and_head(module: nn.Module, head: str) -> dict[str, nn.Module]:
    last = module.get_submodule(head)
    parent, _, child = head.rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return {"body": module, "head": last}


def _chain(module: nn.Module, head: str, stages: dict[str, str]) -> dict[str, nn.Module]:
    """The module's children in a row, cut after each named one and before the head."""
    for taken in ("body", "head"):
        if taken in stages:
            raise BadInput(
                f"the stage {taken!r} is made by split itself; give {stages[taken]!r} another name"
            )
    links = list(_links(module))
    parts: dict[str, nn.Module] = {}
    start = 0
    for name, path in (*stages.items(), ("body", None)):
        stop = _start(links, head) if path is None else _stop(links, path)
        if stop < start or (stop == start and path is not None):
            raise BadInput(
                f"stage {name!r} ends at {path or head!r}, which does not come after the stage "
                f"before it; name the stages in the order of {_name(module)}'s children"
            )
        if stop > start:
            cut = OrderedDict((p.replace(".", "_"), link) for p, link in links[start:stop])
            parts[name] = nn.Sequential(cut)
        start = stop
    return {**parts, "head": module.get_submodule(head)}


def _links(module: nn.Module, prefix: str = "") -> Iterable[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            yield from _links(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _inside(links: list[tuple[str, nn.Module]], path: str) -> list[int]:
    """Where a submodule sits in the row; a container is all that it contains."""
    positions = [i for i, (p, _) in enumerate(links) if p == path or p.startswith(f"{path}.")]
    if not positions:
        raise BadInput(
            f"{path!r} is inside a module that is not a plain nn.Sequential, where no stage can "
            f"end; name one of: {', '.join(p for p, _ in links)}"
        )
    return positions


def _start(links: list[tuple[str, nn.Module]], path: str) -> int:
    return _inside(links, path)[0]


def _stop(links: list[tuple[str, nn.Module]], path: str) -> int:
    return _inside(links, path)[-1] + 1


# ---------------------------------------------------------------------- proving


def _probe(module: nn.Module, shape: tuple[int, ...], fields: Fields = ()) -> tuple[Tensor, Any]:
    """A batch the module accepts, and its output: random values or, where it embeds, indices."""
    draw = generator("split")
    if fields:
        rows = made_up_rows(fields, _PROBES, draw)
        try:
            return rows, _run(module, rows, train=False, fields=fields)
        except Exception as e:  # whatever the user's own code raises
            raise BadInput(_not_called(module, rows, fields, e)) from None
    values = torch.randn(_PROBES, *shape, generator=draw)
    values[0] = 0.0
    batches = [values]
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, _EMBEDDINGS)]
    if tables:
        batches.append(torch.randint(min(tables), values.shape, generator=draw))
    problems = []
    for batch in batches:
        try:
            return batch, _run(module, batch, train=False)
        except Exception as e:  # whatever the user's own code raises
            problems.append(f"{type(e).__name__}: {e}")
    raise BadInput(f"{_name(module)} cannot be run on inputs of shape {shape} ({problems[-1]})")


def _run(module: nn.Module, batch: Tensor, train: bool, fields: Fields = ()) -> Any:
    with torch.no_grad(), rng_scope("split"):
        if fields:
            by_position, by_name = arguments(fields, batch)
            return module.train(train)(*by_position, **by_name)
        return module.train(train)(batch)


def _not_called(module: nn.Module, rows: Tensor, fields: Fields, error: Exception) -> str:
    """Why a module cannot be run on rows of several inputs, and what it is called with."""
    by_position, by_name = arguments(fields, rows)
    shown = [f"{['n', *value.shape[1:]]}".replace("'", "") for value in by_position]
    shown += [
        f"{name} {['n', *value.shape[1:]]}".replace("'", "") for name, value in by_name.items()
    ]
    return (
        f"{_name(module)} cannot be run on the inputs of the data ({type(error).__name__}:"
        f" {error}); its forward is called with: {', '.join(shown)}"
    )


def _verify(net: Net, reference: nn.Module, probe: Tensor, head: str, chained: bool) -> None:
    last = "write it as one nn.Sequential or name only the head"
    if not chained:
        last = "name the submodule that makes the final output"
    # Scaled weights reveal a layer that does not read the tree; the rest reveals a wrong cut.
    for scale, train, when, advice in (
        (1.0, False, "in evaluation mode", last),
        (1.0, True, "in training mode", last),
        (_SCALE, False, "with other weights", "a layer keeps its weights outside its parameters"),
    ):
        problem = _difference(net, reference, probe, scale, train)
        if problem is not None:
            cut = "its children one after another" if chained else "body and head"
            raise BadInput(
                f"{_name(reference)} cannot be cut at {head!r}: run {when}, {cut} {problem}; "
                f"{advice}"
            )


def _difference(
    net: Net, reference: nn.Module, probe: Tensor, scale: float, train: bool
) -> str | None:
    """What goes wrong when both run with all parameters scaled; None when they agree."""
    original = deepcopy(reference)
    w = {k: v * scale if k in net.params else v for k, v in net.tree().items()}
    with torch.no_grad(), rng_scope("split"):
        for p in original.parameters():
            p.mul_(scale)
        try:
            output = net(w, probe, train=train, want=net.logits)[net.logits]
        except Exception as e:  # whatever the user's own code raises without its head
            return f"fail ({type(e).__name__}: {e})"
    expected = _run(original, probe, train, net.fields)
    if output.shape == expected.shape and torch.allclose(output, expected, 1e-4, 1e-5):
        return None
    return "do not give its output"


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _described(output: Any) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
