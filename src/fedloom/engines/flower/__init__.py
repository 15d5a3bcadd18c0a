"""Data stays at the sites: any method over Flower, one message per node.

`codec` has the messages, `node` a site's side, `site_store` what a site keeps, `engine` the
server's side, `expected_upload` what a reply must look like, `in_process` a grid without a network.
"""

from fedloom.engines.flower.engine import Flower, Line, Roster, Traffic
from fedloom.engines.flower.in_process import InProcess

__all__ = ["Flower", "InProcess", "Line", "Roster", "Traffic"]
