"""Builds ``softened_potential.so`` beside the sources, against the TensorFlow that is installed; ``make cpp-op`` runs it."""

import subprocess
from pathlib import Path

import tensorflow as tf

SOURCE = Path(__file__).with_name("softened_potential.cc")


def main() -> None:
    """Runs g++ with the flags that TensorFlow names."""
    include, *others = tf.sysconfig.get_compile_flags()
    quiet = include.replace("-I", "-isystem", 1)  # TensorFlow's headers warn about themselves
    flags = [quiet, *others, "-O2", "-fPIC", "-shared", "-Wall", "-Wextra"]
    command = ["g++", str(SOURCE), "-o", str(SOURCE.with_suffix(".so")), *flags, *tf.sysconfig.get_link_flags()]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
