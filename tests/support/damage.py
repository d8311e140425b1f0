"""Ways to damage a file or an index directory, and what a refusal must tell."""

import json
import re
import struct

import numpy as np

from suffuse.store.files import write_array
from suffuse.store.manifest import MANIFEST, describe_files, sign

REMEDY = re.compile(
    r"again|must have|save with|upgrade|remove|choose|give|use |ask for|do not trust|needed|known are|per row|build"
)


def npy_header(descr, shape):
    """The first 128 bytes of a .npy file, true or not."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n"


def edit(change):
    """Change manifest.json by a function of its content."""

    def damage(directory):
        content = json.loads((directory / MANIFEST).read_text())
        changed = change(content)
        write_signed(directory, content if changed is None else changed)

    return damage


def set_at(*keys, value):
    """Set content[keys[0]][keys[1]]... in the manifest."""

    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return edit(change)


def drop_at(*keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return edit(change)


def overwrite(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def change_bytes(name, change):
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes()))


def change_array(name, change, *, sign=False):
    """Replace an array; with `sign`, the manifest describes the new one, as a forger's would."""

    def damage(directory):
        array = np.load(directory / name)
        changed = change(array)
        write_array(directory / name, array if changed is None else changed)
        if sign:
            sign_again(directory)

    return damage


def sign_again(directory):
    """Make the manifest describe the files that are there, whatever they hold."""
    content = json.loads((directory / MANIFEST).read_text())
    content["files"] = describe_files(directory)
    write_signed(directory, content)


def write_signed(directory, content):
    """Write a manifest with a right hash, as far as it can have one, so that it is refused for what it says."""
    signable = isinstance(content, dict) and "NaN" not in json.dumps(content) and "Infinity" not in json.dumps(content)
    (directory / MANIFEST).write_bytes(sign(content) if signable else json.dumps(content).encode())


def save_plainly(name, change):
    """Replace an array by numpy's own writer."""

    def damage(directory):
        np.save(directory / name, change(np.load(directory / name)), allow_pickle=True)

    return damage


def put(where, value):
    def change(array):
        array[where] = value

    return change


def remove(name):
    return lambda directory: (directory / name).unlink()


def both(*damages):
    def damage(directory):
        for one in damages:
            one(directory)

    return damage


def forged_header(name, descr, shape):
    """A .npy file whose header lies, without data."""
    return overwrite(name, npy_header(descr, shape))


def make_directory(name):
    return lambda directory: (directory / name).mkdir()
