"""A data set before it is dealt to clients: rows, labels, and what is known of each row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedloom.core.fields import Field, Fields
from fedloom.data import cache, several_inputs
from fedloom.data.arrays import as_array, inputs_of_kind
from fedloom.data.normalization import Normalize
from fedloom.errors import BadInput, UnknownName

Kind = Literal["image", "signal", "table", "text", "fields"]
"""What a row is; `fields`: several inputs or inputs of unlike length, as one flat row."""
Labels = np.ndarray | Sequence[Any]
Targets = Literal["classes", "labels", "numbers"]
"""What a row's target is: one class, any of several labels, or numbers."""

_ARRAYS = ("x", "y", "official_test", "domain", "user")
_DIMENSIONS = {"image": 4, "signal": 3, "table": 2, "text": 2, "fields": 2}
_CHUNK = 2048  # rows read at a time from a memory map


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of one data set.

    `x` is uint8 `[n, C, H, W]` for images (float32 where a user gives floats), float32 `[n, C, L]`
    for signals, float32 `[n, d]` for tables, int32 `[n, T]` token ids for text. Several inputs, or
    rows of unlike length, are float32 `[n, width]`, divided by `fields`. `y` is int64 `[n]`
    where `targets` are classes, float32 `[n, K]` of 0 and 1 where they are labels, float32 `[n, d]`
    where they are numbers; `class_names` are the names of classes, labels or numbers. `normalize`
    says how a batch is normalised; by which mean and deviation is known when the rows are divided
    (`FederatedData.scaling`).

    >>> source = Source.from_arrays(np.zeros((4, 3)), ["cat", "dog", "dog", "cat"])
    >>> source.kind, source.shape, source.class_names, source.y.tolist()
    ('table', (3,), ('cat', 'dog'), [0, 1, 1, 0])
    """

    name: str
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    kind: Kind
    official_test: np.ndarray | None = field(default=None, repr=False)  # bool [n]: published test
    domain: np.ndarray | None = field(default=None, repr=False)  # int64 [n], into domain_names
    domain_names: tuple[str, ...] = ()
    user: np.ndarray | None = field(default=None, repr=False)  # int64 [n]: who holds a row, from 0
    user_names: tuple[str, ...] = field(default=(), repr=False)  # empty: users are numbers
    normalize: Normalize = field(default="half", repr=False)
    path: Path | None = None  # the cache folder, when the arrays are memory-mapped
    vocabulary: int = 0  # text: ids are below this; 0 is padding, 1 is unknown
    targets: Targets = field(default="classes", repr=False)
    fields: Fields = field(default=(), repr=False)  # of kind `fields`: what a row consists of
    words: tuple[str, ...] = field(default=(), repr=False)  # of text: those with ids from 2 on
    images: tuple[int, ...] = field(default=(), repr=False)  # behind an encoder: shape of an image

    def __post_init__(self) -> None:
        if self.x.ndim != _DIMENSIONS.get(self.kind):
            raise BadInput(
                f"data {self.name!r}: {self.kind} data has {_DIMENSIONS.get(self.kind)} axes "
                f"(rows first), but x has shape {self.x.shape}"
            )
        if not len(self.x):
            raise BadInput(f"data {self.name!r} has no rows")
        if (self.kind == "fields") != bool(self.fields):
            raise BadInput(f"data {self.name!r}: kind 'fields' and fields come together")
        if 0 in self.shape:
            raise BadInput(f"data {self.name!r}: an input of shape {self.shape} holds nothing")
        for key, array in self._arrays().items():
            if len(array) != len(self.x):
                raise BadInput(
                    f"data {self.name!r}: x has {len(self.x)} rows but {key} has {len(array)}; "
                    "give one entry per row"
                )
        if self.user_names == tuple(map(str, range(len(self.user_names)))):
            object.__setattr__(
                self, "user_names", ()
            )  # numbers need no names, nor room in a pickle
        named = [("domain", self.domain, self.domain_names)]
        if self.targets == "classes":
            named.insert(0, ("y", self.y, self.class_names))
        elif self.y.shape[1:] != (len(self.class_names),):
            raise BadInput(
                f"data {self.name!r}: {self.targets} have shape {self.y.shape}, but "
                f"{len(self.class_names)} names"
            )
        if self.user_names:
            named.append(("user", self.user, self.user_names))
        for key, numbers, names in named:
            if numbers is not None and not (numbers.min() >= 0 and numbers.max() < len(names)):
                raise BadInput(
                    f"data {self.name!r}: {key} goes from {numbers.min()} to {numbers.max()}, but "
                    f"{len(names)} names number it 0 to {len(names) - 1}"
                )

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Labels,
        *,
        name: str = "arrays",
        kind: several_inputs.Kinds = None,
        class_names: Sequence[str] | None = None,
        official_test: Labels | None = None,
        domain: Labels | None = None,
        user: Labels | None = None,
        normalize: Normalize | None = None,
        targets: Targets | None = None,
        longest: several_inputs.Longest = None,
        fields: Fields = (),
    ) -> Source:
        """A source of a user's own arrays; what they are follows from shape and type.

        Four axes are images (channels first; channels last is recognised by a last axis of 1, 3
        or 4), three axes of uint8 are grey images, other three axes are signals `[n, C, L]`, two
        are a table; `kind="text"` makes two axes of integers token ids. Labels are integers or
        strings; without `class_names` they are coded in sorted order. Fractions `[n]` or `[n, d]`
        are numbers to predict, and 0 and 1 in `[n, K]` are labels of which a row may have any;
        `targets` says so where it does not follow from the values, as of whole numbers. `user` says
        who holds a row and `domain` where it comes from, by numbers or names.

        Several inputs are a dictionary or tuple of arrays, and rows of unlike length a list of
        arrays `[T]`, `[T, C]` or `[C, T]`, filled up to the `longest` (longer ones are cut). Then
        `kind` and `longest` may be dictionaries too, and `fields` are those of other data that
        these rows must be like.
        """
        kind_of_rows: Kind
        given = as_array(y, f"data {name!r}: y")
        if fields or longest is not None or several_inputs.several(x, len(given)):
            fields, inputs = several_inputs.flat(x, name, kind, longest, fields, len(given))
            kind_of_rows, vocabulary = "fields", max(each.vocabulary for each in fields)
        else:
            if isinstance(kind, Mapping):
                raise BadInput(f"data {name!r} has one input; give its kind and no dictionary")
            x = as_array(x, f"data {name!r}: x")
            inputs, kind_of_rows = inputs_of_kind(x, kind, f"data {name!r}: x")
            is_text = kind_of_rows == "text" and inputs.size
            vocabulary = int(inputs.max()) + 1 if is_text else 0
        targets = targets or targets_of(given, name)
        labels, names = code_targets(given, targets, class_names, name)
        domains, domain_names = (None, ()) if domain is None else codes(domain, f"{name}: domain")
        users, user_names = (None, ()) if user is None else codes(user, f"{name}: user")
        source = cls(
            name=name,
            x=inputs,
            y=labels,
            class_names=names,
            kind=kind_of_rows,
            official_test=None if official_test is None else np.asarray(official_test, dtype=bool),
            domain=domains,
            domain_names=domain_names,
            user=users,
            user_names=user_names,
            vocabulary=vocabulary,
            targets=targets,
            fields=fields,
        )
        return source.normalized(normalize)

    @property
    def classes(self) -> int:
        """Number of classes, of labels, or of numbers to predict."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(int(s) for s in self.x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the contents (rows, labels, names of classes and domains; not the names of
        users and not the normalisation), in hexadecimal."""
        small: list[Any] = [self.kind, self.class_names, self.domain_names, self.vocabulary]
        small += [self._digests, *map(asdict, self.fields)]
        return hashlib.sha256(json.dumps(small, sort_keys=True).encode()).hexdigest()

    def normalized(self, how: Normalize | None = None) -> Source:
        """The same rows with another normalisation.

        `half`: mean and deviation 0.5. `channel`: those of each channel (each column of a table)
        over the training rows of all clients. `site`: each client by those of its own training
        rows. `none`: inputs as they are. Rows for validation and test are never measured. The
        default is `half` for uint8 images, `channel` for floats; text is always `none`.
        """
        if how is None:
            how = "half" if self.x.dtype == np.uint8 else "channel"
        if how not in get_args(Normalize):
            raise UnknownName("normalisation", str(how), get_args(Normalize))
        ids_alone = self.kind == "text" or (
            self.kind == "fields" and all(each.kind == "text" for each in self.fields)
        )
        return replace(self, normalize="none" if ids_alone else how)

    def only(self, wanted: Sequence[str | int]) -> Source:
        """The rows of these classes (names or numbers), relabelled from 0 in this order; all rows
        where no class is named."""
        if not wanted:
            return self
        if self.targets != "classes":
            raise BadInput(
                f"data {self.name!r} has {self.targets} and no classes; leave out classes"
            )
        wanted_codes = class_codes(self.class_names, wanted)
        rows, y = rows_of_classes(self.y, wanted_codes)
        arrays = {k: a[rows] for k, a in self._arrays().items() if k != "y"}
        names = tuple(self.class_names[c] for c in wanted_codes)
        changes: dict[str, Any] = {**arrays, "y": y, "class_names": names, "path": None}
        return replace(self, **changes)

    def memory_mapped(self) -> Source:
        """The same source with its arrays in the cache folder: processes share one copy."""
        if self._mapped:
            return self
        folder = cache.entry(self.name, self.fingerprint)
        mapped = cached(folder, lambda scratch: self)
        return mapped.described_as(self)

    def described_as(self, other: Source) -> Source:
        """These rows with the name, normalisation, words and user names of another source.

        They are not part of the fingerprint, by which a cache folder is looked up, so the folder
        may have been written for a source with other ones.
        """
        return replace(
            self,
            name=other.name,
            normalize=other.normalize,
            user_names=other.user_names,
            words=other.words,
        )

    def in_memory(self) -> Source:
        """The same source without files, for other machines."""
        arrays: dict[str, Any] = {key: np.asarray(a) for key, a in self._arrays().items()}
        return replace(self, **arrays, path=None)

    def save(self, folder: Path) -> None:
        """Write arrays, names and digests into a folder that `open` reads."""
        meta = {
            **self._small_fields(),
            "fields": [asdict(each) for each in self.fields],
            "fingerprint": self.fingerprint,
            "digests": self._digests,
        }
        cache.write(folder, self._arrays(), {k: v for k, v in meta.items() if k != "path"})

    @classmethod
    def open(cls, folder: Path) -> Source:
        """A saved source; its arrays are memory-mapped, so this takes milliseconds."""
        meta = cache.read_meta(folder)
        try:
            present = tuple(meta["digests"])
            small = {f.name: meta[f.name] for f in fields(cls) if f.name in meta}
        except (KeyError, TypeError):
            raise cache.damaged(folder, cache.META) from None
        tupled = {k: tuple(v) if isinstance(v, list) else v for k, v in small.items()}
        inputs = [
            Field(**{**each, "shape": tuple(each["shape"])}) for each in meta.get("fields", ())
        ]
        return _reopen(present, {**tupled, "fields": tuple(inputs), "path": folder})

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """To another process goes the cache folder's path; only unmapped arrays go as they are."""
        if self._mapped:
            small = {k: v for k, v in self._small_fields().items() if k != "words"}
            return _reopen, (tuple(self._arrays()), small)
        return _rebuild, ({f.name: getattr(self, f.name) for f in fields(self)},)

    @cached_property
    def _mapped(self) -> bool:
        """Whether every array is a whole file of `path`: `replace` may have put in another."""
        path = self.path
        return path is not None and all(
            cache.is_file_of(a, path / f"{k}.npy") for k, a in self._arrays().items()
        )

    @cached_property
    def _digests(self) -> Mapping[str, str]:
        if self._mapped and self.path is not None:
            stored = cache.read_meta(self.path)["digests"]
            return {k: stored[k] for k in self._arrays()}
        return {k: _digest(a) for k, a in self._arrays().items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {k: getattr(self, k) for k in _ARRAYS if getattr(self, k) is not None}

    def _small_fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}


def cached(folder: Path, build: Callable[[Path], Source]) -> Source:
    """The source in a cache folder, built first if the folder does not exist.

    `build` gets a scratch folder, in which it may write an array too large for memory as `x.npy`.
    """
    if not folder.is_dir():
        with cache.scratch_folder() as scratch:
            build(scratch).save(scratch)
            cache.publish(scratch, folder)
    if "words" not in (meta := cache.read_meta(folder)) and meta.get("kind") == "text":
        # A folder of before words were kept.
        return cached(folder.with_name(f"{folder.name}-words"), build)
    return Source.open(folder)


def codes(values: Labels, what: str = "values") -> tuple[np.ndarray, tuple[str, ...]]:
    """Values numbered from 0 in sorted order, and the values as text."""
    names, numbers = np.unique(_without_gaps(np.asarray(values), what), return_inverse=True)
    return numbers.reshape(-1).astype(np.int64), tuple(str(n) for n in names)


def code_labels(
    values: Labels, class_names: Sequence[str] | None, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as int64 from 0, and the names of the classes; strings and integers with gaps between
    them are coded."""
    labels = _plain_labels(np.asarray(values), name)
    if class_names is None:
        return codes(labels)
    names = tuple(str(n) for n in class_names)
    if labels.dtype.kind == "U":
        position = {n: i for i, n in enumerate(names)}
        for unknown in sorted(set(labels.tolist()) - set(names)):
            raise UnknownName(f"class in the labels of data {name!r}:", unknown, names)
        return np.array([position[v] for v in labels.tolist()], dtype=np.int64), names
    return labels, names


def targets_of(y: np.ndarray, name: str) -> Targets:
    """What targets are by their shape and values: fractions are numbers, a matrix of 0 and 1 is
    labels, all else is classes.

    >>> targets_of(np.array([0.5, 1.0]), "mine"), targets_of(np.array([[1, 1], [0, 1]]), "mine")
    ('numbers', 'labels')
    """
    if y.ndim == 2 and y.dtype.kind in "biuf" and y.size:
        zeros_and_ones = bool(np.isin(y, (0, 1)).all())
        if zeros_and_ones and y.shape[1] > 1 and bool((y.sum(1) == 1).all()):
            raise BadInput(
                f"data {name!r}: every row of the labels {y.shape} has a single 1; give one class "
                "per row, y.argmax(1), or set task=multilabel"
            )
        return "labels" if zeros_and_ones else "numbers"
    if y.ndim == 1 and y.dtype.kind == "f" and np.isfinite(y).all() and (y != np.rint(y)).any():
        return "numbers"
    return "classes"


def code_targets(
    y: np.ndarray, targets: Targets, class_names: Sequence[str] | None, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets in the type of their kind, and the names of classes, labels or numbers."""
    if targets == "classes":
        return code_labels(y, class_names, name)
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
        raise BadInput(
            f"data {name!r}: {targets} are {y.dtype} {y.shape}; give numbers [n] or [n, d]"
        )
    numbers = np.ascontiguousarray(y.reshape(len(y), -1), dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise BadInput(f"data {name!r}: targets are missing or infinite in some rows; drop those")
    if targets == "labels" and not np.isin(numbers, (0, 1)).all():
        raise BadInput(
            f"data {name!r}: labels are 0 or 1 for every row and label, not "
            f"{numbers[~np.isin(numbers, (0, 1))][0]:g}"
        )
    count = numbers.shape[1]
    names = tuple(map(str, class_names)) if class_names else _numbered(targets, count)
    if len(names) != count:
        raise BadInput(f"data {name!r}: {count} {targets} in a row, but {len(names)} names")
    return numbers, names


def _numbered(targets: Targets, count: int) -> tuple[str, ...]:
    """Names for targets that have none."""
    if targets == "numbers" and count == 1:
        return ("target",)
    return tuple(f"{'label' if targets == 'labels' else 'target'} {i}" for i in range(count))


def class_codes(class_names: Sequence[str], wanted: Iterable[str | int]) -> list[int]:
    """Positions of classes by name (case, spaces, hyphens and underscores ignored, where no class
    has just this name) or number."""
    exact = {n: i for i, n in enumerate(class_names)}
    by_name = {_squash(n): i for n, i in exact.items()}
    positions = []
    for one in wanted:
        if isinstance(one, str) and (one in exact or _squash(one) in by_name):
            positions.append(exact[one] if one in exact else by_name[_squash(one)])
        elif not isinstance(one, str) and 0 <= one < len(class_names):
            positions.append(int(one))
        else:
            raise UnknownName("class", str(one), class_names)
    if len(set(positions)) < len(positions):
        raise BadInput("classes must name each class only once")
    return positions


def rows_of_classes(y: np.ndarray, wanted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows whose label is among the codes, and the position of their label among the codes."""
    new = np.full(max(int(y.max(initial=0)), *wanted, 0) + 1, -1, dtype=np.int64)
    new[list(wanted)] = np.arange(len(wanted))
    rows = np.flatnonzero(new[y] >= 0)
    return rows, new[y[rows]]


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which values are None or not a number; bool of the same shape."""
    if values.dtype.kind == "f":
        nans: np.ndarray = np.isnan(values)
        return nans
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    missing = [v is None or (isinstance(v, float) and np.isnan(v)) for v in values.ravel().tolist()]
    return np.array(missing, dtype=bool).reshape(values.shape)


def _without_gaps(values: np.ndarray, what: str) -> np.ndarray:
    """Objects and bytes as text; a missing value is an error, not the class 'None'."""
    if is_missing(values).any():
        raise BadInput(f"data {what} are missing in some rows; fill them or drop those rows")
    if values.dtype.kind == "S":
        decoded: np.ndarray = np.char.decode(values, "utf-8", "replace")
        return decoded
    return values.astype(str) if values.dtype.kind == "O" else values


def _plain_labels(labels: np.ndarray, name: str) -> np.ndarray:
    """One-dimensional labels as int64 or text."""
    if labels.ndim != 1:
        raise BadInput(
            f"data {name!r}: labels have shape {labels.shape}; give one class per row, not one-hot"
        )
    whole_labels = _without_gaps(labels, f"{name}: labels")
    if whole_labels.dtype.kind == "U":
        return whole_labels
    if whole_labels.dtype.kind not in "biuf":
        raise BadInput(f"data {name!r}: labels are {labels.dtype}, not integers or strings")
    with np.errstate(invalid="ignore"):  # infinity is no integer either
        fraction = whole_labels != whole_labels.astype(np.int64)
    if fraction.any():
        raise BadInput(
            f"data {name!r}: labels are not integers (for example "
            f"{whole_labels[fraction][0]}); classes are integers or strings"
        )
    return whole_labels.astype(np.int64)


def _digest(array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    for start in range(0, len(array), _CHUNK):
        digest.update(np.ascontiguousarray(array[start : start + _CHUNK]).data)
    return digest.hexdigest()


def _squash(name: str) -> str:
    return "".join(c for c in name.casefold() if c not in " -_")


def _reopen(present: tuple[str, ...], small: dict[str, Any]) -> Source:
    if small["kind"] == "text" and "words" not in small:
        small = {**small, "words": tuple(cache.read_meta(small["path"]).get("words", ()))}
    arrays: dict[str, Any] = {k: cache.read_array(small["path"], k) for k in present}
    return Source(**small, **arrays)


def _rebuild(values: dict[str, Any]) -> Source:
    return Source(**values)
