"""Tesseract's HTTP runtime. It writes a folder for each call into the working directory, which whoever starts it takes away."""

import os
import sys
from pathlib import Path

here = Path(__file__).parent
os.environ.update(TESSERACT_API_PATH=str(here / "tesseract_api.py"), TESSERACT_OUTPUT_PATH=str(Path.cwd()))
os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
program = str(Path(sys.executable).with_name("tesseract-runtime"))
os.execv(program, [program, "serve", "--host", "127.0.0.1", "--port", sys.argv[1]])  # noqa: S606  # no shell is wanted
