"""Evaluation, data sets, rival methods, the paper's tables and figures, tuning and benchmarks."""
