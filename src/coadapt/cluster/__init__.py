"""The real executors. Local processes so far; import them from ``coadapt.cluster.local``.

Nothing is imported here: the keeper (``python -m coadapt.cluster.keeper``) lives as long as the node and
must not carry numpy along.
"""
