"""A long run that is killed again and again, beside the same run left alone.

    python benchmarks/soak.py --engine inline            2,000 rounds, 100 kills
    python benchmarks/soak.py --engine pool --rounds 300 --kills 20
    python benchmarks/soak.py --engine ray               in a network of its own, as Ray reaches out
    python benchmarks/soak.py --only memory --kills 20   one kind of trouble in place of all

A soak that was interrupted, or had its `--minutes`, goes on where it was (in `--scratch`), and its
result is of the rounds that it has reached. At random rounds drawn from `--seed` there is a
`kill -9` (of the command, and of workers), SIGTERM, Ctrl-C, a full disk, a folder that becomes
read-only, a disk that is read-only, a clock that jumps by days and years, or too little memory;
then the run goes on by `fedloom resume`. What has to hold: the process ends as it should, with a
sentence and no traceback; no process stays behind; the journal has every round once, and ledger,
digests and states are those of the run that was left alone, byte for byte. Memory, open handles and
files of that run are read all the while.

As root, the run folder is a small file system of its own; otherwise the disk is neither full nor
read-only, and the result says so. Results: `benchmarks/results/soak.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from endurance.commands import LIMIT_MEMORY, Command, Hold, warm_up
from endurance.places import CLOCK, JUMPS, Disk, again_with_a_clock, protected, set_clock
from endurance.readings import Reading, file_sizes, reading, slopes
from filelock import FileLock

from fedloom.core.digest import digest
from fedloom.engines import ray as ray_engine
from fedloom.files import write_json
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "soak.json"
SETTINGS = {
    "method": "fedper + control_variates",  # states on the server and at every client
    "partition": "dirichlet(alpha=0.3) + scarce(size=60)",
    "clients": 6,
    "participation": 0.5,
    "model": "mlp(hidden=[16])",
    "eval_every": 20,
    "checkpoint_every": 5,
    "seed": 3,
}
OTHERS = {"term": 10, "ctrl_c": 10, "full": 5, "protected": 5, "read_only": 5, "memory": 5}
OTHERS |= {"clock": 20}
"""Troubles beside the kills, in a soak of 100 kills; of fewer in proportion."""
NEEDS_DISK = {"full", "read_only"}
GOES_ON = "fedloom resume"
STARTS = 10
"""Of the Ray cluster, until one succeeds."""
AT_START = Path(__file__).parent / "endurance" / "at_start"
"""What Python processes of the Ray cluster import when they start."""
OF_RAY = re.compile(r"\[[-0-9]+ [:,0-9]+ [A-Z] \d+ \d+\] \w+\.cc:\d+: |\S*\(raylet\)")
"""A line of Ray itself, which tells that there is no network, or that one of its workers died."""
MORE = 2
"""Rounds that a run has to do to show that it goes on."""
UNFELT = 50
"""Rounds after which a limit of memory has no effect: what was freed before suffices."""


@dataclass
class Course:
    """How far a soak is; kept in a file, so that it can go on."""

    troubles: int = 0
    """How many are over."""
    tried: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """What did not go as it should."""
    again: list[int] = field(default_factory=list)
    """For each stop, the rounds in the journal that its resume had to do again."""
    files: list[int] = field(default_factory=list)
    """In the run folder, at each start."""
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Course:
        """Or a new one."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def tries(self, kind: str) -> None:
        """Count it."""
        self.tried[kind] = self.tried.get(kind, 0) + 1


class Rounds:
    """Complete lines of a journal that grows, and is cut where a run goes on."""

    def __init__(self, out: Path) -> None:
        self.path = out / "metrics.jsonl"
        self._size = self._lines = 0

    def count(self) -> int:
        """Now."""
        with suppress(FileNotFoundError):
            size = self.path.stat().st_size
            if size < self._size:
                self._size = self._lines = 0
            if size > self._size:
                with open(self.path, "rb") as file:
                    file.seek(self._size)
                    new = file.read(size - self._size)
                whole = new.rfind(b"\n") + 1
                self._lines += new.count(b"\n")
                self._size += whole
        return self._lines


class Soak:
    """One engine's."""

    def __init__(self, args: argparse.Namespace, disk: Disk, workers: Callable[[], list[Any]]):
        self.engine, self.rounds, self.kills = args.engine, args.rounds, args.kills
        self.minutes, self.disk, self.workers = args.minutes, disk, workers
        self.patience: float = args.patience
        self.late: float = args.late
        self.last = self.rounds - min(30, self.rounds // 4)
        """The latest round at which there is trouble."""
        self.hold = Hold(self.last + MORE)
        self.out = disk.path / "run"
        self.folder: Path = args.scratch / args.engine
        self.file = self.folder / "course.json"
        self.course = Course.read(self.file)
        self.log = self.folder / "command.log"
        self.command: Command | None = None
        self.chance = random.Random(f"{args.seed} {args.engine} {self.course.troubles}")
        self.planned = self._plan(random.Random(f"{args.seed} {args.engine}"), args.only)
        self.more = [f"ray_address={args.ray_address}"] if args.engine == "ray" else []

    def _plan(self, rng: random.Random, only: str | None) -> list[tuple[int, str]]:
        kinds = [only or "kill"] * self.kills
        for kind, times in () if only else OTHERS.items():
            kinds += [kind] * max(1, round(times * self.kills / 100))
        kinds = [k for k in kinds if self.disk.own or k not in NEEDS_DISK]
        kinds = [k for k in kinds if k != "clock" or CLOCK in os.environ]
        rng.shuffle(kinds)
        at = sorted(rng.randint(1, self.last) for _ in kinds)
        return list(zip(at, kinds, strict=True))

    def words(self, out: Path) -> list[str | Path]:
        """The command that starts or goes on with the run in a folder."""
        if (out / "config.json").exists():
            return ["resume", out, "-q"]
        keys = {**SETTINGS, "rounds": self.rounds, "engine": self.engine}
        flags = [f"{key}={value}" for key, value in keys.items()]
        return ["run", *flags, *self.more, "--out", out, "-q"]

    # ------------------------------------------------------------------ left alone

    def alone(self) -> list[Reading]:
        """The run without trouble, and readings all the while."""
        out, file = self.folder / "alone", self.folder / "readings.json"
        if (out / "summary.json").exists() and file.exists():
            return [Reading(**r) for r in json.loads(file.read_text())]
        subprocess.run(["rm", "-rf", out], check=True)
        command, rounds, found = Command(self.words(out), self.log), Rounds(out), []
        while command.poll() is None:
            number = rounds.count()
            if number and (not found or number >= found[-1].round + max(1, self.rounds // 400)):
                with suppress(psutil.Error):
                    found.append(reading(number, command.process, self.workers(), out))
            time.sleep(0.02)
        if command.code != 0:
            raise SystemExit(f"the run without trouble failed: {command.said()}")
        file.write_text(json.dumps([asdict(r) for r in found]))
        return found

    # ------------------------------------------------------------------ in trouble

    def troubled(self) -> None:
        """The run with all its troubles."""
        try:
            self._troubled()
        finally:
            if self.command is not None:
                self.command.kill()

    def _troubled(self) -> None:
        begun, before = time.monotonic(), self.course.seconds
        rounds = Rounds(self.out)
        end = begun + self.minutes * 60
        while self.course.troubles < len(self.planned) and time.monotonic() < end:
            at, kind = self.planned[self.course.troubles]
            self.hold.again()
            command = self.command = self.command or self._started()
            if not self._reached(command, rounds, at, at_work=kind != "kill"):
                self._loses(kind, f"it ended before round {at}: {command.said()}")
                self.command = None
                self.course.troubles += 1
                continue
            time.sleep(self.chance.random() * self.late)
            done = rounds.count()
            self.course.tries(kind)
            ended = getattr(self, f"_{kind}")(command, rounds)
            if ended:
                self._check_left_behind(kind)
                newest = Checkpoints(self.out / "checkpoints").steps()
                self.course.again.append(max(0, done - (newest[0] if newest else 0)))
                self.command = None
            self.course.troubles += 1
            self.course.seconds = before + time.monotonic() - begun
            write_json(self.file, asdict(self.course))
        self.hold.let_go()
        command = self.command = self.command or self._started()
        if command.wait(max(1.0, end - time.monotonic())) is None:  # the next soak goes on
            command.signal(signal.SIGTERM)
            command.wait(self.patience)
        elif command.code:
            self._loses("the end", f"{command.code}: {command.said()}")
        self.course.seconds = before + time.monotonic() - begun
        write_json(self.file, asdict(self.course))

    def _started(self) -> Command:
        self.course.files.append(len(file_sizes(self.out)))
        return Command(self.words(self.out), self.log, self.hold)

    def _reached(self, command: Command, rounds: Rounds, at: int, at_work: bool) -> bool:
        """Whether a round is done; a kill may also hit the start of the command."""

        def there() -> bool:
            return rounds.count() >= at and (not at_work or self._holder() == command.pid)

        end = time.monotonic() + self.patience
        while not there() and command.poll() is None:
            if time.monotonic() > end:
                command.kill()
                self.course.lost.append(f"it hung before round {at}")
            time.sleep(0.002)
        return command.poll() is None

    def _holder(self) -> int:
        """The process that has taken the run folder."""
        with suppress(OSError, ValueError):
            return int((self.out / "fedloom.pid").read_text())
        return 0

    def _loses(self, kind: str, why: str) -> None:
        self.course.lost.append(f"{kind}: {why[-1500:]}")
        print("LOST", self.course.lost[-1], flush=True)

    def _check_left_behind(self, kind: str) -> None:
        end = time.monotonic() + self.patience
        while (left := self.workers()) and time.monotonic() < end:
            time.sleep(0.02)
        if left:
            self._loses(kind, f"processes stay behind: {left}")
            for process in left:
                process.kill()

    def _ends(self, command: Command, kind: str, code: int, *sentence: str) -> bool:
        """The trouble is there: the command has to end with this code, and to say no more than one
        sentence that has these words."""
        self.hold.let_go()
        if command.wait(self.patience) is None:
            command.kill()
            self._loses(kind, "it hung")
        lines = (line for line in command.said().splitlines() if line.strip())
        said = [line for line in lines if not OF_RAY.match(line)]
        fits = len(said) == 1 and all(word in said[0] for word in sentence)
        if command.code != code or not fits:
            self._loses(kind, f"exit code {command.code}: {command.said()}")
        return True

    # Each brings its trouble about, and returns whether the command is over.

    def _kill(self, command: Command, rounds: Rounds) -> bool:
        workers = self.workers()
        if workers and self.chance.random() < 0.25:
            with suppress(psutil.NoSuchProcess):
                self.chance.choice(workers).kill()
            self.course.tries("kill, of a worker")
            if self.engine == "ray":  # it starts another one
                return self._goes_on(command, rounds, "kill")
            return self._ends(command, "kill", 1, "a worker process ended", GOES_ON)
        command.kill()
        return True

    def _term(self, command: Command, rounds: Rounds) -> bool:
        command.signal(signal.SIGTERM)
        return self._ends(command, "term", 130, "fedloom: stopped; ", GOES_ON)

    def _ctrl_c(self, command: Command, rounds: Rounds) -> bool:
        command.signal(signal.SIGINT, group=True)
        return self._ends(command, "ctrl_c", 130, "fedloom: stopped; ", GOES_ON)

    def _full(self, command: Command, rounds: Rounds) -> bool:
        try:
            self.disk.fill()
            self.hold.let_go()
            while command.poll() is None:  # it also gives room back, where it drops a checkpoint
                self.disk.fill()
                time.sleep(0.005)
            return self._ends(command, "full", 1, "fedloom: ", "No space left")
        finally:
            self.disk.free()

    def _protected(self, command: Command, rounds: Rounds) -> bool:
        folders = [f for f in (self.out, self.out / "checkpoints") if f.exists()]
        with protected(*folders):
            return self._ends(command, "protected", 1, "fedloom: ", "Permission denied")

    def _read_only(self, command: Command, rounds: Rounds) -> bool:
        command.kill()
        with self.disk.read_only():
            tried = Command(self.words(self.out), self.log, self.hold)
            return self._ends(tried, "read_only", 1, "fedloom: ", "Read-only file system")

    def _clock(self, command: Command, rounds: Rounds) -> bool:
        set_clock(self.chance.choice(JUMPS))
        return self._goes_on(command, rounds, "clock")

    def _memory(self, command: Command, rounds: Rounds) -> bool:
        if self._goes_on(command, rounds, "memory"):  # so that workers are there, too
            return True
        hungry = self.workers() or [command.process]
        for process in hungry:
            process.send_signal(LIMIT_MEMORY)
        self.hold.let_go()
        start = rounds.count()
        while command.poll() is None and rounds.count() < start + UNFELT:
            if self.engine == "ray" and not any(psutil.pid_exists(p.pid) for p in hungry):
                self.course.tries("memory, aborted")  # and Ray starts others
                return self._goes_on(command, rounds, "memory")
            time.sleep(0.01)
        if command.poll() is None:
            command.kill()
            self.course.tries("memory, not felt")
            return True
        if command.code == -signal.SIGABRT:  # a library in another language does not survive it
            self.course.tries("memory, aborted")
            return True
        return self._ends(command, "memory", 1, "fedloom: ", "memory")

    def _goes_on(self, command: Command, rounds: Rounds, kind: str) -> bool:
        """Some more rounds without a resume; true where it ended, which it must not."""
        enough, end = rounds.count() + MORE, time.monotonic() + self.patience
        while rounds.count() < min(enough, self.hold.rounds) and command.poll() is None:
            if time.monotonic() > end:
                command.kill()
            time.sleep(0.005)
        if command.poll():
            self._loses(kind, f"exit code {command.code}: {command.said()}")
        return command.code is not None


# ---------------------------------------------------------------------- the judgement


def lines_of(out: Path, end: int | None = None) -> list[dict[str, Any]]:
    """The journal, up to so many bytes, without what a clock said."""
    lines = map(json.loads, (out / "metrics.jsonl").read_bytes()[:end].splitlines())
    return [{k: v for k, v in line.items() if k not in ("seconds", "activities")} for line in lines]


def compared(out: Path, alone: Path) -> dict[str, bool]:
    """A run that had trouble, as far as its newest checkpoint, with one that had none."""
    newest, _ = Checkpoints(out / "checkpoints").load_latest()
    mine, other = lines_of(out, newest.journal_bytes), lines_of(alone)
    ends = {name: newest.extra[f"{name}_bytes"] for name in ("ledger", "digests")}
    course = [json.loads(line) for line in (alone / "digests.jsonl").read_text().splitlines()]
    same = {
        "every round once": [r["step"] for r in mine] == list(range(newest.step)),
        "journal": mine == other[: newest.step],
        **{
            f"{name}, byte for byte": (out / f"{name}.jsonl").read_bytes()[:end]
            == (alone / f"{name}.jsonl").read_bytes()[:end]
            for name, end in ends.items()
        },
        "the server's state": digest(newest.server) == course[newest.step - 1]["server_after"],
    }
    if (out / "summary.json").exists():
        one, two = (json.loads((p / "summary.json").read_text()) for p in (out, alone))
        keys = ("state_sha256", "digest", "bytes_up", "bytes_down", "rounds")
        same |= {key: one[key] == two[key] for key in keys}
    return same


def left_over(out: Path) -> list[str]:
    """Files of writers that were killed."""
    hidden = (str(p.relative_to(out)) for p in out.rglob(".*"))
    return sorted(hidden)


def saved(engine: str, found: dict[str, Any], file: Path) -> None:
    """Put an engine's result among the others'."""
    lock = file.with_suffix(".lock")
    with FileLock(lock):
        results = json.loads(file.read_text()) if file.exists() else {"engines": {}}
        results["engines"][engine] = found
        results |= {"settings": SETTINGS, "versions": current_versions()}
        write_json(file, results)
    lock.unlink(missing_ok=True)


def judged(soak: Soak, readings: Sequence[Reading], reference: Path) -> dict[str, Any]:
    """All that is to be said of an engine's soak."""
    course = soak.course
    return {
        "rounds": soak.rounds,
        "reached": Checkpoints(soak.out / "checkpoints").steps()[0],
        "tried": dict(sorted(course.tried.items())),
        "not_tried": [] if soak.disk.own else sorted(NEEDS_DISK),
        "lost": course.lost,
        "same": compared(soak.out, reference),
        "rounds_again": {"most": max(course.again, default=0), "all": sum(course.again)},
        "starts": len(course.files) + 1,
        "seconds": round(course.seconds),
        "grows": slopes(readings),
        "files_of_troubled_run": {
            "most": max(course.files),
            "at_the_end": len(file_sizes(soak.out)),
        },
        "left_over": left_over(soak.out),
    }


# ---------------------------------------------------------------------- engines


def pool_workers() -> list[psutil.Process]:
    """All that are forked by the process that workers are forked from."""
    from multiprocessing import forkserver

    server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    return [worker for worker in server.children() if lives(worker)]


def lives(process: psutil.Process) -> bool:
    """It may end while it is looked at."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def ray_cluster(folder: Path) -> Iterator[tuple[str, Callable[[], list[psutil.Process]]]]:
    """A cluster of this program's own, its address, and its actors."""
    words = ["start", "--head", "--block", "--num-cpus=2", "--include-dashboard=false"]
    words += ["--port=6390", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    ray = Path(sys.executable).with_name("ray")
    environment = {
        **os.environ,
        # As nice as this program: Ray's workers are nicer by 15, and on a busy machine they do not
        # get to import torch in the time that a run waits for them.
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join(
            [str(AT_START), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    process = ready_head([ray, *words], environment, folder / "ray.log")

    def actors() -> list[psutil.Process]:
        found = []
        for p in process.children(recursive=True):
            with suppress(psutil.Error):
                if "Actor" in " ".join(p.cmdline()) and p.status() != psutil.STATUS_ZOMBIE:
                    found.append(p)
        return found

    try:
        yield "127.0.0.1:6390", actors
    finally:
        everyone = [*process.children(recursive=True), process]
        for p in everyone:
            with suppress(psutil.NoSuchProcess):
                p.terminate()
        for p in psutil.wait_procs(everyone, timeout=20)[1]:
            p.kill()


def ready_head(words: Sequence[str | Path], environment: dict[str, str], log: Path) -> Any:
    """The process of a cluster's head. Ray gives a node 30 seconds to start, which are too few on a
    busy machine; then it is tried again."""
    for _ in range(STARTS):
        with open(log, "wb") as file:
            head = psutil.Popen(words, stdout=file, stderr=file, env=environment)
        while head.poll() is None:
            if "Ray runtime started" in log.read_text():
                return head
            time.sleep(0.2)
    raise SystemExit(log.read_text())


def raise_loopback() -> None:
    """In a network namespace of its own."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextmanager
def surroundings(args: argparse.Namespace) -> Iterator[Callable[[], list[Any]]]:
    """What an engine needs; yields how its workers are found."""
    if args.engine == "ray":
        # For the commands, which are forked from here.
        ray_engine.FIRST_SECONDS = args.patience
        folder = Path(f"/tmp/soak-ray-{os.getpid()}")  # sockets need a short path
        folder.mkdir()
        with ray_cluster(folder) as (args.ray_address, actors):
            yield actors
    else:
        yield pool_workers if args.engine == "pool" else list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="inline")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["kill", *OTHERS], help="in place of kills and all else")
    parser.add_argument("--minutes", type=float, default=1e4, help="of trouble; go on later")
    parser.add_argument(
        "--patience",
        type=float,
        default=300,
        help="seconds after which what is waited for hangs; raise it on a busy machine",
    )
    parser.add_argument(
        "--late",
        type=float,
        default=0.05,
        help="a trouble comes so many seconds after its round at the most",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/fedloom-soak"))
    args = parser.parse_args()
    namespace = ["unshare", "-n"] if args.engine == "ray" and os.geteuid() == 0 else []
    again_with_a_clock(args.scratch / args.engine, namespace)
    if args.engine == "ray":
        raise_loopback()
    warm_up(args.engine)
    disk = Disk.mounted(args.scratch / args.engine / "disk", megabytes=200)
    with surroundings(args) as workers, disk as place:
        soak = Soak(args, place, workers)
        readings = soak.alone()
        soak.troubled()
        found = judged(soak, readings, soak.folder / "alone")
    print(json.dumps(found, indent=1))
    if args.only:
        found.pop("grows")  # as in the soak of all troubles
    saved(f"{args.engine}, {args.only}" if args.only else args.engine, found, args.results)


if __name__ == "__main__":
    main()
