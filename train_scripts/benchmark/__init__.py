"""Experiments and measurements behind the numbers in the README."""
