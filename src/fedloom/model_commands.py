"""`fedloom export | predict | serve`: clients' models of a run, or of a deployed site, in use; and
`fedloom adapt`, for who comes after a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedloom.collector import importing
from fedloom.deploy.cli import Imports
from fedloom.errors import BadInput

if TYPE_CHECKING:
    from fedloom.serving.app import Models
    from fedloom.serving.model import PersonalModel

_out = Console()
_err = Console(stderr=True)

Run = Annotated[
    Path, typer.Argument(help="A run folder, or the folder of a model (a site's, an export's).")
]
Client = Annotated[
    str | None,
    typer.Option(help="Whose model, by number or site name; of a model's folder it is known."),
]
Json = Annotated[bool, typer.Option("--json", help="Last line of stdout: what was done, as JSON.")]


def export(
    run: Run,
    *,
    client: Client = None,
    format: Annotated[
        str,
        typer.Option(
            help="torch (model.py and tensors), exported-program (model.pt2), onnx, or safetensors"
            " (for fedloom)."
        ),
    ] = "torch",
    to: Annotated[Path, typer.Option("--out", "-o", help="An empty or new folder.")],
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Write a client's model and its card, to be used without its run.

    Raw rows go in: normalisation is inside. All formats but safetensors need no fedloom.
    """
    with importing():
        from fedloom.serving.export import export as export_model

    folder = export_model(_model(run, client, imports), format, to)
    names = sorted(file.name for file in folder.iterdir())
    if as_json:
        print(json.dumps({"saved": str(folder), "files": names}), flush=True)
    else:
        print(f"saved {', '.join(names)} in {folder}")


def predict(
    run: Run,
    rows: Annotated[
        Path, typer.Argument(help="Images or a folder of them, .npy, .npz, .csv, .parquet or .txt.")
    ],
    *,
    client: Client = None,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="The CSV file to write; else it is printed.")
    ] = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Predict rows with a client's model: classes by name, with their probabilities."""
    with importing():
        from fedloom.files import write_atomic
        from fedloom.serving.row_files import read_rows

    model = _model(run, client, imports)
    named = read_rows(rows, model.card)
    table = model.answers(named.x).to_csv(named.names, named.called)
    if to is None:
        print(table, end="")
    else:
        try:
            write_atomic(to, table)
        except OSError as e:
            raise BadInput(f"cannot write {to} ({e.strerror}); pick another --out") from None
    if as_json:
        done: dict[str, Any] = {"rows": len(named.names), "saved": None if to is None else str(to)}
        print(json.dumps(done), flush=True)
    elif to is not None:
        print(f"saved {len(named.names)} predictions in {to}")


def adapt(
    run: Annotated[
        Path, typer.Argument(help="A run folder, also of a deployment's server (server/runs/NAME).")
    ],
    *,
    data: Annotated[
        str, typer.Option(help="The newcomer's rows: a path, in a form that the run's data has.")
    ],
    epochs: Annotated[
        int | None, typer.Option(help="By default the protocol's newcomer_epochs, or 10.", min=1)
    ] = None,
    lr: Annotated[float | None, typer.Option(help="In place of the run's learning rate.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the newcomer; if not set, the path's.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column; by default the run's.")] = None,
    inputs: Annotated[str | None, typer.Option(help="Input columns; by default the run's.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Resize images to this square; by default as the run.", min=1)
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Rows for training and test; by default as the run.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="An empty or new folder for the model.")
    ] = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Give a newcomer a model of a federation that has ended, by the method's own joining rule.

    The run is only read. The model is scored beside the one that was received and one that the
    newcomer trained alone, with the same rows and epochs.
    """
    with importing():
        from fedloom.launch.opened import open as open_run
        from fedloom.launch.terminal import adapted_table
        from fedloom.serving.export import empty_folder

    if _is_model(run):
        raise BadInput(
            f"{run} holds the model of one client, and a newcomer joins all of them; give the"
            " folder of the run"
        )
    if to is not None:
        empty_folder(to)  # before the training, which takes a while
    result = open_run(run, imports=imports or ())
    for warning in result.warnings:
        _note(warning)
    adapted = result.adapt(
        data,
        epochs=epochs,
        lr=lr,
        name=name,
        label=label,
        inputs=inputs,
        image_size=image_size,
        split=split,
    )
    if to is not None:
        adapted.save(to)
    if as_json:
        saved = None if to is None else str(to)
        print(json.dumps({**adapted.to_json(), "saved": saved}), flush=True)
        return
    _out.print(adapted_table(adapted))
    if to is not None:
        print(f"saved the model of {adapted.model.card.name} in {to}")


def serve(
    run: Run,
    *,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 is any free one.", min=0, max=65535)] = 8000,
    most_rows: Annotated[int, typer.Option(help="Of one request.", min=1)] = 1000,
    most_megabytes: Annotated[float, typer.Option(help="Of one request.", min=0.001)] = 16.0,
    imports: Imports = None,
) -> None:
    """Answer predictions over HTTP, for every client of a run; /docs has all requests.

    It knows no passwords: beyond this machine, put a gateway with authentication before it.
    """
    with importing():
        from fedloom.serving.app import Limits, serve_models

    models = _models(run, imports)

    def tell(address: str) -> None:
        _note(f"{len(models.names)} models at {address} (requests: {address}/docs)")

    serve_models(models, Limits(most_rows, most_megabytes), host, port, tell)


def _is_model(path: Path) -> bool:
    return (path / "card.json").exists()


def _model(run: Path, client: str | None, imports: list[str] | None) -> PersonalModel:
    with importing():
        from fedloom.launch.opened import open as open_run
        from fedloom.serving.model import PersonalModel

    if _is_model(run):
        model = PersonalModel.load(run, imports)
        if client not in (None, model.card.name, str(model.card.client)):
            raise BadInput(f"{run} holds the model of client {model.card.name}, not of {client}")
        return model
    if client is None:
        raise BadInput("whose model? give --client with a number or a site's name")
    result = open_run(run, imports=imports or ())
    for warning in result.warnings:
        _note(warning)
    return result.client(client)


def _models(run: Path, imports: list[str] | None) -> Models:
    with importing():
        from fedloom.launch.opened import open as open_run
        from fedloom.serving.app import Models

    if _is_model(run):
        model = _model(run, None, imports)
        return Models([model.card.name], lambda name: model)
    result = open_run(run, imports=imports or ())
    names = result.experiment.data.client_names
    result.client(0)  # states that are not kept are refused now and not at the first request
    return Models(names, result.client)


def _note(text: str) -> None:
    _err.print(f"fedloom: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)
