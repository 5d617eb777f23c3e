"""Classifiers under corruption: `task` is the experiment, `levels` what happens to images."""
