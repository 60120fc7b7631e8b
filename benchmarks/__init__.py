"""Benchmarks: times as ratios, measured side by side in one process.

``registry`` lists them, ``run`` runs one and writes its numbers down, ``timing`` measures; every
other module is a benchmark.
"""
