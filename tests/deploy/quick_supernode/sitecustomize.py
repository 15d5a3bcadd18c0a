"""Shorter waits in the SuperNodes of a test: Python imports a file of this name at its start.

`federation_under_test` puts this folder on the path of all its processes. Flower has no settings
for the waits below.
"""

import sys

if any(word.endswith("flower-supernode") for word in sys.orig_argv):
    import time

    from flwr.supercore import heartbeat
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection

    # The least that a SuperLink accepts: a node that was killed counts as gone after twice this
    # time, 20 seconds instead of 60.
    SECONDS = 10
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = SECONDS
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = SECONDS

    # Between two attempts to reach a link that was killed, at most; instead of 20 seconds.
    http_retry.MAX_RETRY_DELAY = 2

    # A node without work asks for some every three seconds, a number written into its loop.
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(1 if seconds == 3 else seconds)
