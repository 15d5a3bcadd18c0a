"""A traced prediction as plain torch source: one file, and tensors in safetensors beside it.

TorchScript is deprecated and a pickled module needs the code that made it. A graph can be written
down as what it is, one torch operation per line, which anybody can read before running it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_HEAD = '''"""A model as plain torch; made by fedloom, needs only torch and safetensors.

    from model import load

    model = load()               # reads {tensors} beside this file
    prediction = model({rows})     # {inputs}

CARD.md says where it comes from, what goes in and what comes out.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import device, inf, nan  # noqa: F401 (some graphs name them)


class Model(torch.nn.Module):
    """Raw rows in, predictions out; normalisation is inside."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, {rows}):
{body}


def load(folder=Path(__file__).parent):
    """The model with the tensors of a folder."""
    return Model(load_file(Path(folder) / "{tensors}")).eval()
'''
_ASSERTION = re.compile(r"_assert\w*\b.*= torch\.ops\.aten\._assert")
_FORGETTING = re.compile(r";  [\w =]+ = None$")


def written(program: ExportedProgram, tensors: str, inputs: str) -> tuple[str, dict[str, Tensor]]:
    """The source of a module, and its tensors by the names that the source uses."""
    buffers = dict(program.graph_signature.inputs_to_buffers)
    arguments = ", ".join(map(str, program.graph_signature.user_inputs))
    values = {**program.state_dict, **program.constants}
    used = {**buffers, **program.graph_signature.inputs_to_lifted_tensor_constants}
    lines = [f"        {name} = self.{target}" for name, target in used.items()]
    for line in program.graph_module.code.splitlines():
        if not line.startswith("    ") or not line.strip() or _ASSERTION.search(line):
            continue
        lines.append("    " + _FORGETTING.sub("", line.rstrip()))
    lines[-1] = re.sub(r"return \((\w+),\)", r"return \1", lines[-1])
    source = _HEAD.format(tensors=tensors, inputs=inputs, rows=arguments, body="\n".join(lines))
    return source, {target: values[target].contiguous() for target in used.values()}
