"""Digests of what the product decides, plans and folds, as recorded once: a change that moves code changes none of them.

``python -m tests.digests`` compares, ``python -m tests.digests --record`` writes ``digests.json`` anew.
Digest A is of everything. Digest B leaves out words: sentences for people, which may be rewritten while every number and
every choice stays.
"""
