"""Samples made by slow programs: a store that loses nothing, executors, programs."""
