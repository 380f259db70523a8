"""Step time of a data-parallel job: models, their tables and fits."""

#: Name of the model used where no policy names another.
DEFAULT_MODEL = "node-aware"
