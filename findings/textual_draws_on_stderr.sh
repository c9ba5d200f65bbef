#!/bin/sh
# Guess: a full-screen program of textual draws on stdout. So it is enough to ask sys.stdout.isatty() before it takes
#   the screen, and `program 2>errors.log` keeps the messages apart from the picture.
# What happens: textual draws on stderr (textual/drivers/linux_driver.py: self._file = sys.__stderr__). With stdout in a
#   file and stderr at the terminal the whole picture is on the terminal, and the file is empty. With stderr in a file
#   the terminal stays blank while keys are read, and the file has the escape sequences. Neither is refused.
# Instead: take the screen only if stdin, stdout and stderr are a terminal.
# Version: textual 8.2.8 with CPython 3.11.7. Linux. Source: its driver, and the output below.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check textual==8.2.8 rich==15.0.0
cat >"$folder/app.py" <<'APP'
from textual.app import App
from textual.widgets import Static


class Small(App):
    def compose(self):
        yield Static("a picture")

    def on_mount(self):
        self.set_timer(1.0, self.exit)


Small().run()
APP
cat >"$folder/look.py" <<'LOOK'
import os, pty, sys, importlib.metadata

print("python", sys.version.split()[0], "textual", importlib.metadata.version("textual"))
found = {}
for name, number in (("stdout", 1), ("stderr", 2)):
    file = f"{name}.txt"
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
        os.execv(sys.executable, [sys.executable, "app.py"])
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.waitpid(child, 0)
    with open(file, "rb") as written:
        found[name] = (b"a picture" in seen, b"a picture" in written.read())
    print(f"{name} in a file: picture on the terminal: {found[name][0]}, in the file: {found[name][1]}")
sys.exit(0 if found == {"stdout": (True, False), "stderr": (False, True)} else "the behaviour has changed")
LOOK
cd "$folder"
venv/bin/python look.py
