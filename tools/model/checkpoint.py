"""Checkpoints: all of a training's state, so that going on gives what not stopping would have."""

import os
import pathlib

import torch

import network


def save(path, config, step, state):
    """`state`: flat vectors weights, first and second (of Adam), and the last step's counts."""
    temporary = pathlib.Path(f"{path}.part")
    torch.save({"config": vars(config), "step": step, **state}, temporary)
    os.replace(temporary, path)


def load(path):
    """(config, step, state)."""
    found = torch.load(path)
    config = network.Config(**found.pop("config"))
    return config, found.pop("step"), found
