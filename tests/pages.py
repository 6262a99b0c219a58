"""Pages of documentation as programs: their Python blocks and commands are run, and what they print is checked.

    python -m tests.pages docs/tutorials/*.md        runs pages and writes what they print, and their pictures, into them

A ```python block is code; all blocks of a page share their names. A ```text block right after one is what it prints. A
```console block has commands after `$ `, each followed by what it prints, or by nothing where that does not matter.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from typer.testing import CliRunner

FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```\n", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
PICTURE = re.compile(r"!\[[^]]*]\(images/([\w.-]+)\)")

WIDTH = 86  # of a terminal, as the pages have room for

# Machines round differently, and training amplifies it: an accuracy may move by an example or two, and words may not.
ABSOLUTE, RELATIVE = 0.03, 0.1


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and where in the page that text begins and ends."""

    language: str
    body: str
    start: int
    end: int


@dataclass(frozen=True)
class Printed:
    """What a page says is printed, or None where it does not say, and what was; with the span to write it into."""

    promised: str | None
    found: str
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    return [Block(m["language"], m["body"], *m.span("body")) for m in FENCE.finditer(text)]


def has_code(page: Path) -> bool:
    return any(block.language in ("python", "console") for block in blocks(page.read_text()))


def run_page(page: Path, names: dict[str, object] | None = None) -> list[Printed]:
    """Run a page from top to bottom in the current folder, as for somebody who types along."""
    torch.manual_seed(0)
    text = page.read_text()
    names = {} if names is None else names
    names["__name__"] = "page"
    listed = blocks(text)
    found: list[Printed] = []
    for block, after in zip(listed, [*listed[1:], None], strict=True):
        if block.language == "python":
            printed = _run_python(page, text, block, names)
            if after is not None and after.language == "text" and not text[block.end + 4 : after.start - 8].strip():
                found.append(Printed(after.body, printed, after.start, after.end))
        elif block.language == "console":
            found += _run_console(block)
    return found


def _run_python(page: Path, text: str, block: Block, names: dict[str, object]) -> str:
    # Moved down to its own line, so that a traceback names the page's line.
    code = "\n" * text[: block.start].count("\n") + block.body
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, str(page), "exec", dont_inherit=True), names)
    return printed.getvalue()


def _run_console(block: Block) -> Iterator[Printed]:
    place = block.start
    for part in re.split(r"^(?=\$ )", block.body, flags=re.MULTILINE):
        if part.startswith("$ "):
            command, _, promised = part.partition("\n")
            begin = place + len(command) + 1
            yield Printed(promised or None, _run_command(command[2:]), begin, place + len(part))
        place += len(part)


def _run_command(line: str) -> str:
    from plausible.cli import app

    program, *arguments = shlex.split(line)
    if program in ("head", "cat"):  # to look at a file
        count = int(arguments.pop(0).removeprefix("-")) if arguments[0].startswith("-") else None
        return "".join(Path(arguments[0]).read_text().splitlines(keepends=True)[:count])
    assert program == "plausible", f"a page may run plausible, head and cat, got {line!r}"
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(WIDTH)})
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return "".join(f"{row.rstrip()}\n" for row in result.stdout.splitlines())


def difference(promised: str, found: str) -> str | None:
    """Why what was printed is not what the page says, or None. `...` on a line of its own stands for any lines."""
    wanted = [re.escape(_words(part)) for part in re.split(r"^\.\.\.\n", promised, flags=re.MULTILINE)]
    shape = re.fullmatch("((?:.*\n)*?)".join(wanted), _words(found))
    if shape is None:
        return f"the words differ; the page says\n{promised}\nand the run printed\n{found}"
    for said, got in zip(_numbers(promised), _numbers_kept(found, shape), strict=True):
        if abs(said - got) > ABSOLUTE + RELATIVE * abs(said):
            return f"the page says {said:g} and the run printed {got:g}"
    return None


def _words(text: str) -> str:
    """A text with a mark for every number, one space for many, and one for a bar: columns grow with their numbers."""
    return re.sub(r"[ ─━█·]+", " ", NUMBER.sub("#", text))


def _numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def _numbers_kept(found: str, shape: re.Match[str]) -> list[float]:
    """The numbers of the lines that the page shows, without those of the lines behind `...`."""
    numbers, words = _numbers(found), shape.string
    skipped: set[int] = set()
    for group in range(1, (shape.re.groups or 0) + 1):
        first = words[: shape.start(group)].count("#")
        skipped |= set(range(first, first + shape[group].count("#")))
    return [number for index, number in enumerate(numbers) if index not in skipped]


def pictures(page: Path) -> list[str]:
    """The names of the pictures that a page shows from its folder `images`; its code draws them."""
    return PICTURE.findall(page.read_text())


def rewrite(page: Path) -> None:
    """Run a page and put what it prints, and what it draws, in its places."""
    page = page.resolve()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            found = run_page(page)
            for name in pictures(page):
                (page.parent / "images").mkdir(exist_ok=True)
                shutil.copyfile(name, page.parent / "images" / name)
        finally:
            os.chdir(here)
    text = page.read_text()
    for printed in reversed(found):
        if printed.promised is not None and not re.search(r"^\.\.\.$", printed.promised, re.MULTILINE):
            text = text[: printed.start] + printed.found + text[printed.end :]
        elif printed.promised is not None:
            print(f"{page.name}: written by hand, because of its '...'; the run printed\n{printed.found}")
    page.write_text(text)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests
    for name in sys.argv[1:]:
        rewrite(Path(name))
