"""What the project promises, measured. Each module is run by ``python -m benchmarks.<name>``."""

import os

from benchmarks.smoke import take_option

# before numpy is imported: OpenBLAS' threads spin when cores are contended, and nothing here gains from them
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

take_option()
