"""Step time of a data-parallel job: models, their tables and fits."""
