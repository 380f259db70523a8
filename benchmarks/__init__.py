"""What the project promises, measured. Each module is run by ``python -m benchmarks.<name>``."""
