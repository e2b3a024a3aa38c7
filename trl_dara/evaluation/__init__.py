"""Evaluation of trained models: mathematics, tool calling, and the statistics of both."""
