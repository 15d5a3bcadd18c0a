"""How a process computes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from fedloom.core.threads import on_one_thread
on_one_thread()
def pass_():  # two large outputs at a time, as of a layer and the next
    a = torch.zeros(3_000_000)
    b = a + 1
pass_()
pass_()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    pass_()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries learn nothing")
def test_a_process_that_computes_reuses_the_memory_it_freed() -> None:
    """24 MB a pass are 5,900 pages, which are not made anew ten times; one pass or two may still
    enlarge the heap, by where it begins."""
    pages = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True)
    assert int(pages) < 3 * 5_900
