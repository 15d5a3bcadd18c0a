"""Small made-up data with the schema of a known data set: to try a configuration without the data.

Shape, classes, domains, users, published test rows and name are those of the real set, so that
every partition, split, shift and network accepts it; what the rows show means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedloom.data.hub import ACTIVITIES, CHARACTERS, DOMAINNET10, KNOWN, hub_entry
from fedloom.data.known import known_name
from fedloom.data.options import Options
from fedloom.data.partition.draw import rng, whole
from fedloom.data.source import Kind, Source
from fedloom.errors import BadInput, UnknownName

_PATTERN = 4  # side of the blocks that tell the classes of generated images apart
_TEST = 6  # of this many rows of a class, one is of the published test set
_VOCABULARY = 1000  # different words in generated text

_DIGITS = tuple("0123456789")
_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CLOTHES = (
    *("T - shirt / top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_OFFICE_CALTECH10 = (
    *("backpack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop", "monitor", "mouse", "mug", "projector"),
)


@dataclass(frozen=True)
class Schema:
    """What a data set looks like, without its contents."""

    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    kind: Kind = "image"
    test: bool = True  # does it mark published test rows?
    domains: tuple[str, ...] = ()
    users: int = 0


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"class_{k}" for k in range(classes))


SCHEMAS: dict[str, Schema] = {
    "digits": Schema((1, 8, 8), _DIGITS, test=False),
    "fashion_mnist": Schema((1, 28, 28), _CLOTHES),
    "mnist": Schema((1, 28, 28), _DIGITS),
    "emnist": Schema((1, 28, 28), CHARACTERS),
    "cifar10": Schema((3, 32, 32), _CIFAR10),
    "cifar100": Schema((3, 32, 32), tuple(_CIFAR100.split())),
    "cinic10": Schema((3, 32, 32), _CIFAR10),
    "tiny_imagenet": Schema((3, 64, 64), _numbered(200)),
    "ag_news": Schema((200,), ("World", "Sports", "Business", "Sci/Tech"), "text"),
    "pacs": Schema(
        (3, 64, 64),
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        test=False,
        domains=("art_painting", "cartoon", "photo", "sketch"),
    ),
    "office_home": Schema(
        (3, 64, 64),
        _numbered(65),
        test=False,
        domains=("Art", "Clipart", "Product", "Real World"),
    ),
    "domainnet10": Schema(
        (3, 64, 64),
        DOMAINNET10,
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    ),
    "office_caltech10": Schema(
        (3, 64, 64),
        _OFFICE_CALTECH10,
        test=False,
        domains=("amazon", "caltech10", "dslr", "webcam"),
    ),
    "usps": Schema((1, 16, 16), _DIGITS),
    "har": Schema((9, 128), ACTIVITIES, "signal", users=30),
}
SCHEMAS["femnist"] = replace(SCHEMAS["emnist"], test=False, users=50)
"""Of `har` the published form, with nine signals; of `femnist` fifty of its 3,597 writers."""

_SUBSETS: dict[tuple[str, str | None], Schema] = {
    ("emnist", "letters"): Schema((1, 28, 28), _LETTERS)
}


def like(
    data: str, rows_per_class: int = 20, *, image_size: int | None = None, seed: int = 0
) -> Source:
    """A small source with the schema of a known data set, the same on every machine.

    Args:
        data: a known name, or an expression of one, `"emnist(subset=letters)"`.
        rows_per_class: rows of each class, in each domain where there are domains.
        image_size: side of images; by default that of the real set as it is loaded.
        seed: of the contents.

    >>> source = like("cifar10", rows_per_class=6)
    >>> source.name, source.shape, len(source), source.official_test.sum()
    ('cifar10', (3, 32, 32), 60, np.int64(10))
    """
    whole(rows_per_class=rows_per_class)
    known = known_name(data, Options())
    if known is None:
        raise UnknownName("data set", data, SCHEMAS)
    name, options = known
    schema = _schema(name, options, image_size)
    gen = rng(seed, "generated", name)
    classes, domains = len(schema.class_names), max(1, len(schema.domains))
    # One row of every class and domain after the other; the rows of the test set come last.
    once = np.arange(classes * domains)
    which = np.tile(once, rows_per_class)
    y, domain = which % classes, which // classes
    n, test_rows = len(which), max(1, rows_per_class // _TEST) * len(once)
    source = Source(
        name=name,
        x=_inputs(schema, y, gen),
        y=y,
        class_names=schema.class_names,
        kind=schema.kind,
        official_test=np.arange(n) >= n - test_rows if schema.test and n > test_rows else None,
        domain=domain if schema.domains else None,
        domain_names=schema.domains,
        user=gen.permutation(n) % schema.users if schema.users else None,
        vocabulary=_VOCABULARY if schema.kind == "text" else 0,
    )
    return source.normalized().only(options.classes)


def _schema(name: str, options: Options, image_size: int | None) -> Schema:
    if name in KNOWN:
        hub_entry(name, options)  # refuses a subset that is not known
    schema = _SUBSETS.get((name, options.subset), SCHEMAS[name])
    if schema.kind == "text":
        return replace(schema, shape=(options.positions,))
    if image_size is None:
        return schema
    if schema.kind != "image":
        raise BadInput(f"data {name!r} is {schema.kind} and has no image_size; leave it out")
    whole(image_size=image_size)
    return replace(schema, shape=(schema.shape[0], image_size, image_size))


def _inputs(schema: Schema, y: np.ndarray, gen: np.random.Generator) -> np.ndarray:
    """Noise around a pattern of the class, so that a network can learn something."""
    shape, classes = (len(y), *schema.shape), len(schema.class_names)
    if schema.kind == "text":
        own_words = gen.integers(2, _VOCABULARY, (classes, _PATTERN))
        x = gen.integers(2, _VOCABULARY, shape)
        x[:, : min(_PATTERN, shape[1])] = own_words[y][:, : shape[1]]
        return np.asarray(x, dtype=np.int32)
    if schema.kind == "image":
        channels, height, width = schema.shape
        blocks = gen.integers(0, 128, (classes, channels, _PATTERN, _PATTERN), dtype=np.uint8)
        down, across = (np.arange(side) * _PATTERN // side for side in (height, width))
        pattern = blocks[:, :, down][:, :, :, across]
        noise = gen.integers(0, 128, shape, dtype=np.uint8)
        return np.asarray(pattern[y] + noise)
    means = gen.normal(size=(classes, schema.shape[0], 1))
    return np.asarray(means[y] + gen.normal(size=shape), dtype=np.float32)
