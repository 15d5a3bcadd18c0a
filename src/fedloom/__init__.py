"""fedloom: personalized federated learning in representation space."""
