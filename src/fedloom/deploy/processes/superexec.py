"""A site's SuperExec that forks client apps from a process with everything imported.

Flower's own starts `flwr-clientapp` anew for every message, and importing torch, Flower and fedloom
takes it longer than most messages do. Here a *template* process imports them once and does nothing
else: it has no threads and no connections, and every client app is a fork of it, so that a message
still has a process of its own that ends with it.

Flower starts the command `flower-superexec` by name. `forking_scripts` is a folder with a script of
that name, for the front of a site's PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedloom.files import write_atomic

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

COMMAND = "flower-superexec"


def forking_scripts(home: Path) -> Path:
    """A folder whose `flower-superexec` is this one."""
    folder = home / "scripts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / COMMAND
    write_atomic(script, f'#!/bin/sh\nexec {shlex.join(_words("main", COMMAND))} "$@"\n')
    script.chmod(0o700)
    return folder


def main() -> None:
    """In place of Flower's command, with its arguments."""
    del sys.argv[0]  # `-c`
    template = Template()  # first of all: it imports while this process does

    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import factory
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import LaunchResult

    class ForkingExecutor(SubprocessExecutor):
        """Flower's own, but for client apps."""

        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            if spec.task_type == TaskType.CLIENT_APP and template.fork(client_app_words(spec)):
                return LaunchResult.accepted()
            return super().launch(spec)

    factory.SubprocessExecutor = ForkingExecutor  # type: ignore
    flower_superexec()


def client_app_words(spec: ExecutionSpec) -> list[str]:
    """The command of a client app, as Flower writes it."""
    words = ["flwr-clientapp", "--runtime-api-address", spec.runtime_api_address]
    words += ["--token", spec.token]
    if spec.insecure:
        words += ["--insecure"]
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    if spec.parent_pid is not None:
        words += ["--parent-pid", str(spec.parent_pid)]
    if spec.runtime_dependency_install:
        words += ["--allow-runtime-dependency-installation"]
    return words


class Template:
    """The process that client apps are forked from; it ends with this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(_words("serve", "flwr-clientapp"), stdin=subprocess.PIPE)

    def fork(self, words: list[str]) -> bool:
        """Begin a client app with this command line; False: the template is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True


def serve() -> None:
    """The template's life: import, then a fork for every line, up to the end of its input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the apps
    from flwr.supernode.cli import flwr_clientapp

    import fedloom.deploy.apps  # noqa: F401

    for line in sys.stdin.buffer:
        if os.fork() == 0:
            _become(flwr_clientapp, json.loads(line))


def _become(client_app: Callable[[], None], words: list[str]) -> NoReturn:
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the orders are not for an app
        os.close(nothing)
        sys.argv = words
        client_app()
        code = 0
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _words(function: str, name: str) -> list[str]:
    """A command that calls a function of this file; whoever looks for it finds it by `name`."""
    call = f"from {__name__} import {function}; {function}()"
    return [sys.executable, "-P", "-c", call, name]
