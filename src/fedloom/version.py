"""The version that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedloom")
except PackageNotFoundError:  # the sources are on the path without an installation
    __version__ = "not installed"
