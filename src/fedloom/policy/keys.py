"""Which settings concern a site: every key of a run and of a deployment has its class here.

A key without a class fails a test, and at a site it counts as one that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Concern = Literal["judged", "harmless", "not for sites"]
"""A rule looks at it; it says nothing of rows; or only the server, or a simulation, reads it."""

CONCERNS: Mapping[str, tuple[Concern, str]] = {
    "imports": ("judged", "code of the run's own: modules and their sha256; unknown, local_files"),
    "method": ("judged", "methods; what its parts reveal; odd_settings"),
    "data": ("not for sites", "a site has its own data"),
    "label": ("not for sites", "stands in site.toml"),
    "client": ("not for sites", "a site is one client"),
    "domain": ("not for sites", "a site is one client"),
    "inputs": ("not for sites", "a site's table has its own columns"),
    "task": ("judged", "class_weights, some_rows, large_moves, unknown"),
    "metrics": ("judged", "unknown; fedloom's own are over the test rows that are scored anyway"),
    "partition": ("not for sites", "a site is one client"),
    "clients": ("judged", "few_participants"),
    "split": ("judged", "other_rows, few_rows, few_test_rows"),
    "shift": ("not for sites", "made-up differences, for simulations"),
    "augment": ("judged", "blank_rows, unknown"),
    "normalize": ("judged", "raw_inputs"),
    "image_size": ("judged", "most_image_size"),
    "partition_seed": ("judged", "other_rows"),
    "newcomers": ("not for sites", "clients of a simulation"),
    "encoder": ("harmless", "a public network with its own weights, the same at every site"),
    "model": (
        "judged",
        "models, most_parameters, dense_layers, rare_classes, words, unknown, local_files",
    ),
    "start": ("judged", "local_files; weights of a package, pretrained:NAME, are no file"),
    "start_without": ("judged", "local_files, as it has a meaning with start only"),
    "rounds": ("judged", "most_rounds; with decay, small_moves"),
    "participation": ("judged", "few_participants"),
    "epochs": ("judged", "few_steps, most_steps"),
    "steps": ("judged", "some_rows, few_steps, most_steps"),
    "batch_size": ("judged", "small_batches, few_steps"),
    "lr": ("judged", "small_moves, large_moves"),
    "optimizer": ("judged", "small_moves: its smallest rate goes by the optimizer"),
    "momentum": ("judged", "odd_settings"),
    "weight_decay": ("judged", "large_moves"),
    "beta1": ("judged", "odd_settings"),
    "beta2": ("harmless", "scales the steps of all batches alike"),
    "eps": ("judged", "small_moves"),
    "keep_state": ("harmless", "the state of the optimizer stays at the site"),
    "clip": ("judged", "small_moves"),
    "decay": ("judged", "small_moves, large_moves"),
    "drop_last": ("judged", "small_batches, few_steps"),
    "replacement": ("judged", "some_rows"),
    "server_optimizer": ("judged", "small_moves"),
    "server_lr": ("judged", "small_moves, large_moves"),
    "server_beta1": ("judged", "small_moves"),
    "server_beta2": ("harmless", "scales the server's steps"),
    "server_tau": ("judged", "small_moves"),
    "aggregation": ("not for sites", "what the server makes of uploads"),
    "secure_aggregation": ("harmless", "masks what leaves; without it, it leaves as it is"),
    "compression": ("harmless", "the same change in fewer bytes; the rest stays at the site"),
    "hostile": ("not for sites", "made-up attackers, for simulations"),
    "privacy": ("judged", "privacy, least_noise, most_epsilon, most_delta"),
    "protocol": ("judged", "few_test_rows: whatever it tests, only scores leave"),
    "eval_every": ("harmless", "how often scores are asked for"),
    "early_stop": ("harmless", "fewer rounds"),
    "diagnose": ("not for sites", "needs what clients hold, which sites do not send"),
    "diagnose_every": ("not for sites", "as diagnose"),
    "seed": ("harmless", "the order of rows; what knowing it would give is judged"),
    "engine": ("not for sites", "always Flower's"),
    "workers": ("not for sites", "of simulations"),
    "ray_address": ("not for sites", "of simulations"),
    "min_clients": ("judged", "few_participants"),
    "memory": ("not for sites", "of simulations"),
    "device": ("not for sites", "stands in site.toml"),
    "checkpoint_every": ("not for sites", "of simulations"),
    "history": ("not for sites", "checkpoints of the server"),
    "out": ("not for sites", "a folder of the server"),
    "title": ("not for sites", "of the server's tables"),
    "experiment": ("judged", "most_experiments; its states are bound to its settings"),
    "sites": ("harmless", "who may take part"),
    "class_names": ("harmless", "the order of labels; a label that it lacks is refused"),
    "deadline": ("not for sites", "how long the server waits"),
    "patience": ("not for sites", "how long the server waits"),
    "lost_state": ("harmless", "whether a site without its state begins anew"),
    "most_rows": ("not for sites", "what the server refuses"),
    "most_rows_ratio": ("not for sites", "what the server refuses"),
    "most_norm": ("not for sites", "what the server refuses"),
    "keep_rounds": ("harmless", "how many earlier states stay at the site"),
    "simulated_data": ("not for sites", "of Flower's own simulation"),
    "simulated_partition": ("not for sites", "of Flower's own simulation"),
    "simulated_policy": ("not for sites", "of Flower's own simulation"),
}
"""Key -> its class, and the rules that look at it or why none does."""

MAY_CHANGE = frozenset({"rounds", "sites", "min_clients", "lost_state"})
"""Keys that may change while an experiment goes on: no state depends on them."""

OLD_BEHAVIOUR: Mapping[str, Any] = {}
"""Key -> what fedloom did before it had the key, where that is not the key's default."""


def concerns_sites(key: str) -> bool:
    """Does a site act on this key? One that is not known here does."""
    return CONCERNS.get(key, ("judged", ""))[0] != "not for sites"
