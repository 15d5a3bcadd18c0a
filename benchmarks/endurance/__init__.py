"""What `soak.py` needs: processes to get into trouble, a disk that fills up, a clock that jumps."""
