"""The command `tessera` of the wheel: the program itself, in this process's place."""
import os
import sys
from pathlib import Path


def main() -> None:
    program = str(Path(__file__).parent / "bin" / "tessera")
    os.execv(program, ["tessera", *sys.argv[1:]])
