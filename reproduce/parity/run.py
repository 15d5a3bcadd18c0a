"""Compare fedloom with an author's program, tensor by tensor.

    python reproduce/parity/run.py fedpac --official ~/FedPAC

`--official` is a checkout of the repository that the comparison names. Its packages have to be
importable; nothing of it is copied. The differences go to `results/METHOD.json`, the author's
tensors, against which the tests check fedloom without the repository, to `reference/`. `--double`
computes both in double precision and writes nothing: a difference that is rounding vanishes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# An author's modules may have the names of ours: ours are found as reproduce.parity.NAME only.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from fedloom.errors import FedloomError  # noqa: E402
from reproduce.parity.compare import compare, measured  # noqa: E402
from reproduce.parity.harness import comparison, comparisons, in_double  # noqa: E402


def main() -> None:
    """Run one comparison and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("method", choices=comparisons())
    parser.add_argument("--official", type=Path, required=True, help="the author's checkout")
    parser.add_argument("--double", action="store_true", help="only look, in double precision")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parity, official = comparison(options.method), options.official.resolve()
    try:
        if options.double:
            with in_double(parity) as wide:
                measured(wide, official)
        else:
            compare(options.method, parity, official)
    except FedloomError as e:
        sys.exit(f"parity: {e}")
    except ModuleNotFoundError as e:
        sys.exit(f"parity: the authors' program imports {e.name!r}, which is not installed")


if __name__ == "__main__":
    main()
