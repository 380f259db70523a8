"""The part of an executor that runs on each machine: the keeper, attempts, processes, devices, logs."""
