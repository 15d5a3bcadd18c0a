"""The public names of fedloom.data, one import each; read by type checkers and by `lazy`."""

from fedloom.data.augment import augmentations as augmentations
from fedloom.data.federated import FederatedData as FederatedData
from fedloom.data.federated import divide as divide
from fedloom.data.federated import federate as federate
from fedloom.data.load import load as load
from fedloom.data.normalization import Scaling as Scaling
from fedloom.data.partition import Partition as Partition
from fedloom.data.partition import modifiers as modifiers
from fedloom.data.partition import partitions as partitions
from fedloom.data.partition import register_partition as register_partition
from fedloom.data.registry import register_data as register_data
from fedloom.data.remote import RemoteData as RemoteData
from fedloom.data.shift import shifts as shifts
from fedloom.data.source import Source as Source
from fedloom.data.split import splits as splits
