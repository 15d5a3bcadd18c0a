"""The Flower app of the benchmark: what runs in Ray's workers has to be importable there."""
