"""What pages are given when they are built: every method, every public name of a module, the help of every command."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from typer.main import get_command

import plausible as pl
from plausible.cli import app
from plausible.report.catalogue import ENTRIES

METHODS = "<!-- every method -->"
COMMANDS = "<!-- the help of every command -->"
NAMES = re.compile(r"<!-- every name of (?P<module>[\w.]+) -->")
WIDTH = 86  # of the printed help: what fits beside the navigation


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with every page before it becomes HTML."""
    if METHODS in markdown:
        markdown = markdown.replace(METHODS, methods())
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    return NAMES.sub(lambda found: names(found["module"]), markdown)


def methods() -> str:
    """One entry per method, the catalogue's first and in its order, so that a new one cannot be forgotten."""
    known = [entry.class_name for entry in ENTRIES]
    found = [name for name in pl.__all__ if _is_method(getattr(pl, name))]
    return "\n\n".join(
        _entry(f"plausible.{name}")
        for name in [*known, *sorted(set(found) - set(known))]
    )


def _is_method(value: Any) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, pl.Method)
        and value is not pl.Method
    )


def names(module: str) -> str:
    """One entry per public name of a module, where it is defined: a function may have the name of its file."""
    home = import_module(module)
    return "\n\n".join(_name(home, name) for name in public_names(home))


def public_names(module: Any) -> list[str]:
    """What a module offers: its `__all__`, or everything without an underscore that it defines itself."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = lambda value: getattr(value, "__module__", None) == module.__name__  # noqa: E731
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and own(value)
    ]


def _name(module: Any, name: str) -> str:
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return _entry(
            f"{value.__module__}.{value.__qualname__}",
            members=inspect.isabstract(value),
        )
    listed = ", ".join(f"`{key}`" for key in value)
    return f"### {name} {{ #{module.__name__}.{name} }}\n\nWhat a posterior file may name: {listed}."


def _entry(path: str, members: bool = False) -> str:
    return f"::: {path}\n    options:\n      heading_level: 3\n      members: {str(members).lower()}"


def commands() -> str:
    """The help of every command, as `--help` prints it."""
    program: Any = get_command(app)
    parts = [_shown("plausible", program)]
    for name in sorted(program.commands):
        parts += [
            f"## `plausible {name}` {{ #{name} }}",
            _shown(f"plausible {name}", program.commands[name]),
        ]
    return "\n\n".join(parts)


def _shown(name: str, command: Any) -> str:
    with command.context_class(
        command, info_name=name, terminal_width=WIDTH
    ) as context:
        return f"```text\n{command.get_help(context).rstrip()}\n```"
