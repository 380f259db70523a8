"""The words a report uses, as DESIGN defines them."""

from __future__ import annotations

from html import escape

_WORDS: tuple[tuple[str, str], ...] = (
    ("JCT", "Job completion time: from submission to finish, of jobs that succeeded."),
    ("Makespan", "From the first submission to the last finish."),
    ("Wait", "Time between submission and finish in which a job held no GPUs, before its first start or paused."),
    ("GPU", "Any accelerator slot; a CPU core on a machine without GPUs."),
    ("Held, utilisation", "A job holds GPUs from the moment it is started there until its last process is gone. Utilisation is GPU time held over GPU time available, within the makespan."),
    ("Change, restart", "A start or a resize. Restarts are the changes after a job's first start; while it starts, resizes or stops, its GPUs are held and nothing is learned."),
    ("Batch size M, reference M0", "Examples per step over all replicas; M0 is the batch size the job was tuned for."),
    ("Gradient noise scale phi", "How noisy a job's gradient is, in examples. The noisier, the larger the batch that still helps."),
    ("Statistical efficiency", "(phi + M0) / (phi + M): how much an example at batch size M teaches, compared with one at M0. Averages are weighted by GPU time."),
    ("Goodput", "Throughput times statistical efficiency: useful examples per second."),
    ("Finish-time fairness rho", "JCT over the time the job would have taken alone on ceil(GPUs / n) GPUs, n the average number of active jobs during its life. At or below 1 is fair; starts and rounds alone, which the job pays in company more often than alone, push rho slightly above 1."),
    ("95% interval", "From a paired bootstrap: jobs drawn with replacement 2,000 times, the same ones for both runs."),
)  # fmt: skip


def glossary() -> str:
    """The words as a list of definitions."""
    return (
        "<dl>" + "".join(f"<div><dt>{escape(w)}</dt><dd>{escape(d)}</dd></div>" for w, d in _WORDS) + "</dl>"
    )
