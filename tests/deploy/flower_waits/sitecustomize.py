"""Other waits in Flower's processes of a test: Python imports a file of this name at its start.

Tests put this folder on the path of all their processes. Flower has no settings for the waits
below.
"""

import sys

SECONDS = 600
"""Between two signs of life. A process counts as lost when it was silent for twice this time, by
default for one minute; a machine that is busy with other things must not seem to have lost it.
`trouble.lapse` is for tests in which a site is lost."""


def is_process(*words: str) -> bool:
    """Is this the process with one of these words in its command?"""
    return any(argument.endswith(words) for argument in sys.orig_argv)


if is_process("flwr", "flwr-serverapp", "flwr-clientapp", "superexec", "fedloom.deploy.gate"):
    from flwr.supercore.protobuf.client import ProtobufClient

    # For an answer of link or node, by default 30 seconds. Flower then asks again, and for some
    # requests, as the one that begins a task, the second answer is a refusal.
    ProtobufClient.__init__.__kwdefaults__["timeout"] = float(SECONDS)

if is_process("fedloom.deploy.guard", "flower-superlink"):
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate

    # An app has to show itself within this time of its start, by default 30 seconds.
    in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = SECONDS
    sql_corestate.HEARTBEAT_DEFAULT_INTERVAL = SECONDS

if is_process("flwr-simulation"):
    from patient_ray import wait_for_nodes

    wait_for_nodes()

if is_process("fedloom.deploy.gate"):
    import time

    from flwr.supercore import heartbeat
    from flwr.supercore.corestate import in_memory_corestate
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection

    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = SECONDS
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = SECONDS
    in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = SECONDS

    # Between two attempts to reach a link that was killed, at most; instead of 20 seconds.
    http_retry.MAX_RETRY_DELAY = 2

    # A node without work asks for some every three seconds, a number written into its loop. Less
    # is quicker, and costs processor time that other tests could use.
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(2 if seconds == 3 else seconds)
