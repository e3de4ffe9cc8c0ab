"""Flags from dataclasses: what is typed, a file, a preset and the defaults become configuration objects.

    dataclass default  <  preset of the environment  <  --config FILE  <  flag

A field `num_envs` is the flag `--num-envs`; a bool is `--use-vtrace` or `--no-use-vtrace`; a tuple is
`--hidden-sizes 64,64`; a dict is `--env-kwargs key=value`, once per key; `none` is None. `--flag=value` works too.
The documentation of a flag is the docstring below its field, read from the source only when it is shown.

`python -m zmqrl.cli.options` prints docs/configuration.md.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import json
import shutil
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from zmqrl.cli import VERBS
from zmqrl.config import (
    AsyncActorLearnerConfig,
    EnvConfig,
    PolicyConfig,
    PPOConfig,
    RunConfig,
    TransportConfig,
)
from zmqrl.errors import UsageError
from zmqrl.presets import PRESETS, preset_for, preset_line

CONFIG_CLASSES: tuple[type, ...] = (
    EnvConfig,
    AsyncActorLearnerConfig,
    PPOConfig,
    PolicyConfig,
    RunConfig,
    TransportConfig,
)
"""All configuration classes, in the order in which they are documented and saved."""

C = TypeVar("C")


@dataclass(frozen=True)
class Options:
    """What a verb was told: `options[PPOConfig]` is the configuration of that class."""

    verb: str
    configs: Mapping[type, Any]
    """By class, in the order of the classes; the verb's own options too."""
    typed: frozenset[str]
    """Fields that were set by a flag, or by a flat name in the file."""
    dry_run: bool = False

    def __getitem__(self, kind: type[C]) -> C:
        """The instance of a class that was given to `parse`."""
        config: C = self.configs[kind]
        return config


class Inert(NamedTuple):
    """A field that does nothing beside certain other values."""

    field: str
    when: Callable[[Mapping[str, Any]], bool]
    sentence: str


INERT = (
    Inert("vtrace_rho_bar", lambda values: not values.get("use_vtrace", True), "it acts only with --use-vtrace"),
    Inert("vtrace_c_bar", lambda values: not values.get("use_vtrace", True), "it acts only with --use-vtrace"),
    Inert(
        "gae_lambda",
        lambda values: bool(values.get("use_vtrace", False)),
        "V-trace has no lambda; leave out this or --use-vtrace",
    ),
    Inert(
        "max_chunk_bytes",
        lambda values: values.get("chunk_steps", 0) != 0,
        "chunk_steps fixes the length of a chunk; leave out one of the two",
    ),
)
"""Options that are refused where they would do nothing."""


# --- parsing -------------------------------------------------------------------------------------------


def parse(
    verb: str,
    argv: Sequence[str],
    classes: Sequence[type],
    extra: type | None = None,
    *,
    positional: str = "",
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    omit: Collection[str] = (),
    complete_later: Collection[type] = (),
) -> Options:
    """Build one instance of each of `classes` (and of `extra`, the verb's own options) from the command line.

    positional: the field of `extra` that takes arguments without a dash: a str takes one, a tuple any number.
    defaults: the verb's own, in place of a class's.
    omit: fields that would do nothing for this verb; they are no flags of it.
    complete_later: classes whose values the verb completes, and validates itself.
    A verb that takes AsyncActorLearnerConfig makes a run: it has --dry-run, and sees to `Options.dry_run` itself.
    Prints help and raises SystemExit(0) for --help. Raises UsageError (ConfigError) with one sentence.
    """
    reader = _Reader(verb, classes, extra, positional, defaults, frozenset(omit))
    typed, file_name, dry_run = reader.read_flags(argv)
    from_file, flat = reader.read_file(file_name) if file_name else ({}, frozenset[str]())
    env = typed.get("env", from_file.get("env", ""))
    preset = preset_for(env, reader.configured)
    values = {**defaults, **preset, **from_file, **typed}
    for name in typed.keys() & from_file.keys():
        if isinstance(typed[name], dict):
            values[name] = {**from_file[name], **typed[name]}
    applied = {name: value for name, value in preset.items() if name not in from_file and name not in typed}
    if applied:
        print(preset_line(env, applied), file=sys.stderr)
    configs = {
        kind: kind(**{name: values[name] for name in names if name in values}) for kind, names in reader.groups.items()
    }
    for kind, config in configs.items():
        if kind not in complete_later and hasattr(config, "validate"):
            config.validate()
    set_by_name = frozenset(typed) | flat
    refuse_inert(set_by_name, {name: getattr(config, name) for config in configs.values() for name in _names(config)})
    return Options(verb, configs, set_by_name, dry_run)


def refuse_inert(typed: Collection[str], values: Mapping[str, Any]) -> None:
    """UsageError for the first option that was typed and would do nothing beside these values."""
    for inert in INERT:
        if inert.field in typed and inert.when(values):
            raise UsageError(f"{_flag(inert.field)} would do nothing: {inert.sentence}")


def resolved_config(options: Options) -> dict[str, dict[str, Any]]:
    """All configuration fields by name of their class: strict JSON, and valid as `--config FILE`."""
    return {
        kind.__name__: json.loads(json.dumps(dataclasses.asdict(config), allow_nan=False))
        for kind, config in options.configs.items()
        if kind in CONFIG_CLASSES
    }


def print_configuration(options: Options) -> int:
    """What `--dry-run` does: print the resolved configuration as JSON; returns the exit code."""
    print(json.dumps(resolved_config(options), indent=2))
    return 0


class _Reader:
    """The fields of one verb, and what reads them from texts and files."""

    def __init__(
        self,
        verb: str,
        classes: Sequence[type],
        extra: type | None,
        positional: str,
        defaults: Mapping[str, Any],
        omit: frozenset[str],
    ) -> None:
        self.verb = verb
        self.extra = extra
        self.positional = positional
        self.defaults = defaults
        everything = [*classes, *([extra] if extra else [])]
        self.groups = {kind: [name for name in _names(kind) if name not in omit] for kind in everything}
        self.kinds = {name: hint for kind in everything for name, hint in get_type_hints(kind).items()}
        self.configured = frozenset(name for kind in classes for name in self.groups[kind])
        self.known = [name for names in self.groups.values() for name in names if name != positional]
        self.has_file = bool(classes)
        self.makes_run = AsyncActorLearnerConfig in classes

    def read_flags(self, argv: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
        """(values by field, FILE of --config or '', --dry-run)."""
        values: dict[str, Any] = {}
        file_name, dry_run = "", False
        rest = list(argv)
        if any(word in ("--help", "-h") for word in rest):
            print(self.help())
            raise SystemExit(0)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                self._positional(values, word)
                continue
            flag, equals, text = word.partition("=")
            if flag == "--dry-run" and self.makes_run and not equals:
                dry_run = True
            elif flag == "--config" and self.has_file:
                file_name = text if equals else _next(flag, rest)
            else:
                self._flag(values, flag, text if equals else None, rest)
        return values, file_name, dry_run

    def _positional(self, values: dict[str, Any], word: str) -> None:
        name = self.positional
        if not name or (name in values and not isinstance(values[name], tuple)):
            raise UsageError(f"unexpected argument {word!r}; options begin with --, see zmqrl {self.verb} --help")
        many = get_origin(self.kinds[name]) is tuple
        values[name] = (*values.get(name, ()), word) if many else word

    def _flag(self, values: dict[str, Any], flag: str, text: str | None, rest: list[str]) -> None:
        name = flag[2:].replace("-", "_") if flag.startswith("--") and "_" not in flag else ""
        negated = name.startswith("no_") and self.kinds.get(name[3:]) is bool
        name = name[3:] if negated else name
        if name not in self.known:
            raise UsageError(self._unknown_flag(flag))
        kind = self.kinds[name]
        if kind is bool:
            if text is not None:
                raise UsageError(f"{flag} takes no value; it is {_flag(name)} or --no-{name.replace('_', '-')}")
            value: Any = not negated
        else:
            value = from_text(flag, kind, _next(flag, rest) if text is None else text)
        if isinstance(value, dict):
            twice = values.get(name, {}).keys() & value.keys()
            value = {**values.get(name, {}), **value}
        else:
            twice = {name} & values.keys()
        if twice:
            raise UsageError(f"{flag} is given twice for {', '.join(sorted(twice))}; leave one out")
        values[name] = value

    def _unknown_flag(self, flag: str) -> str:
        offered = [spelling for name in self.known for spelling in _spellings(name, self.kinds[name])]
        offered += [*(["--config"] if self.has_file else []), *(["--dry-run"] if self.makes_run else [])]
        if self._useless_here(flag[2:].replace("-", "_")):
            return f"{flag} does nothing for zmqrl {self.verb}; leave it out"
        hint = _nearest(flag.replace("_", "-"), offered)
        return f"unknown option {flag}; {hint} zmqrl {self.verb} --help lists all"

    def _useless_here(self, name: str) -> bool:
        """A configuration field, but none of this verb's."""
        return name not in self.known and any(name in _names(kind) for kind in CONFIG_CLASSES)

    def read_file(self, file_name: str) -> tuple[dict[str, Any], frozenset[str]]:
        """(values by field, fields that were named flat); a section is the name of a class, as in config.json."""
        sections = {kind.__name__: kind for kind in CONFIG_CLASSES}
        values: dict[str, Any] = {}
        flat: set[str] = set()
        for key, value in _load(file_name).items():
            if key not in sections:
                self._take(values, file_name, key, value)
                flat.add(key)
                continue
            if not isinstance(value, dict):
                raise UsageError(f"{file_name}: {key} is not an object of field names and values")
            for name, entry in value.items():
                names = _names(sections[key])
                if name not in names:
                    raise UsageError(f"{file_name}: unknown field {key}.{name}; {_nearest(name, names)}")
                if name in self.configured:  # a whole run's file serves a verb that needs only some of it
                    self._take(values, file_name, name, entry)
        return values, frozenset(flat)

    def _take(self, values: dict[str, Any], file_name: str, name: str, value: Any) -> None:
        if self._useless_here(name):
            raise UsageError(f"{file_name}: {name} does nothing for zmqrl {self.verb}; leave it out")
        if name not in self.configured:
            raise UsageError(f"{file_name}: unknown field {name}; {_nearest(name, self.configured)}")
        if name in values:
            raise UsageError(f"{file_name}: {name} is given twice")
        values[name] = from_json(f"{file_name}: {name}", self.kinds[name], value)

    def help(self) -> str:
        """What --help prints: the flags by class."""
        width = min(shutil.get_terminal_size().columns, 110)
        argument = f" {self.positional.upper()}" if self.positional else ""
        lines = [f"usage: zmqrl {self.verb}{argument} [options]", ""]
        if self.verb in VERBS:
            lines += [VERBS[self.verb].summary, ""]
        if self.has_file:
            lines += [
                "  --config FILE",
                "      JSON with names of fields, or a run's own config.json; flags override it.",
            ]
        if self.makes_run:
            lines += ["  --dry-run", "      Print the resolved configuration as JSON and end."]
        if self.has_file:
            lines.append("")
        for kind in sorted(self.groups, key=lambda kind: kind is not self.extra):  # the verb's own come first
            names = self.groups[kind]
            lines.append(_first_line(kind))
            documentation = field_documentation(kind)
            defaults = {**_defaults(kind), **self.defaults}
            for name in names:
                if name == self.positional:
                    lines.append(f"  {name.upper()}")
                else:
                    default = "" if kind is self.extra and defaults[name] == "" else f"  ({_shown(defaults[name])})"
                    lines.append(f"  {_usage(name, self.kinds[name])}{default}")
                lines += textwrap.wrap(documentation[name], width, initial_indent=" " * 6, subsequent_indent=" " * 6)
            lines.append("")
        if self.makes_run:
            note = f"In brackets: the default. Presets change some of them for {', '.join(PRESETS)}."
            lines += textwrap.wrap(note, width)
        return "\n".join(lines).rstrip()


def _next(flag: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{flag} needs a value")
    return rest.pop(0)


def _load(file_name: str) -> dict[str, Any]:
    def no_constant(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twin = next((name for name in names if names.count(name) > 1), None)
        if twin is not None:
            raise ValueError(f"{twin} is given twice")
        return dict(pairs)

    try:
        data = json.loads(Path(file_name).read_text("utf-8"), parse_constant=no_constant, object_pairs_hook=no_twins)
    except OSError as error:
        raise UsageError(f"cannot read --config {file_name}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file_name} is not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file_name} has to be a JSON object of field names and values")
    return data


def _nearest(name: str, known: Collection[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return f"did you mean {matches[0]}?" if matches else "there are none"


# --- values --------------------------------------------------------------------------------------------


def from_text(flag: str, kind: Any, text: str) -> Any:
    """The value that `text` stands for in a field of this type; UsageError if it is none."""
    kind, optional = _without_none(kind)
    if optional and text.lower() == "none":
        return None
    try:
        if kind is int:
            return _whole(text)
        if kind is float:
            return float(text)
        if get_origin(kind) is tuple:
            parts = [part for part in text.split(",") if part]
            return tuple(from_text(flag, get_args(kind)[0], part.strip()) for part in parts)
    except ValueError:
        raise UsageError(f"{flag} {text}: {_expected(kind)}{' or none' if optional else ''} is expected") from None
    if get_origin(kind) is dict:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"{flag} {text}: key=value is expected")
        try:
            return {key: json.loads(value)}
        except ValueError:
            return {key: value}
    if get_origin(kind) is Literal:
        return _choice(flag, kind, text)
    return text


def from_json(place: str, kind: Any, value: Any) -> Any:
    """`value` from a JSON file as a field of this type; UsageError if it is of another."""
    kind, optional = _without_none(kind)
    if optional and value is None:
        return None
    if get_origin(kind) is Literal:
        return _choice(place, kind, value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(from_json(place, get_args(kind)[0], entry) for entry in value)
    plain = get_origin(kind) or kind
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise UsageError(
            f"{place} = {json.dumps(value)}: {_expected(kind)}{' or null' if optional else ''} is expected"
        )
    return value


def _whole(text: str) -> int:
    """Also 1_000_000 and 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(text) from None
        return int(number)


def _choice(place: str, kind: Any, value: Any) -> Any:
    choices = get_args(kind)
    if value not in choices:
        raise UsageError(f"{place} {value}: one of {', '.join(choices)} is expected")
    return value


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is types.UnionType:
        return next(part for part in get_args(kind) if part is not type(None)), True
    return kind, False


def _expected(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    names |= {tuple: "a list of whole numbers", dict: "an object of names and values"}
    return names[get_origin(kind) or kind]


# --- documentation -------------------------------------------------------------------------------------


def field_documentation(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, in one line; read from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def configuration_page() -> str:
    """docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from `zmqrl/config.py`, `zmqrl/presets.py` and `zmqrl/cli/` by `make docs`; do not edit.",
        "",
        "A value comes from the first of these that has it: the flag, `--config FILE`, the preset of the environment,",
        "the default below. FILE is JSON: names of fields with their values, or a run's own `config.json`.",
        "Which values a command would use, without running it: `zmqrl train --env CartPole-v1 --dry-run`.",
        "",
        "An option that is unknown, out of range, or without effect beside the others is an error (exit code 2).",
        "",
    ]
    for kind in CONFIG_CLASSES:
        lines += [f"## {kind.__name__}", "", *_section(kind)]
    for verbs, kind in verb_options().items():
        lines += [f"## Of {verbs} alone", "", *_section(kind)]
    lines += [
        "## Presets",
        "",
        "Defaults for one environment, from measurements. Everything typed or in the file overrides them.",
        "",
    ]
    for env, preset in PRESETS.items():
        values = ", ".join(f"`{name} = {_shown(value)}`" for name, value in preset.items())
        lines.append(f"- **{env}**: {values}")
    lines += ["", "## Options that would do nothing", ""]
    lines += [f"- `{_flag(inert.field)}`: {inert.sentence}." for inert in INERT]
    return "\n".join(lines)


def verb_options() -> dict[str, type]:
    """The options that only some verbs have, and that are no part of a run's configuration."""
    from zmqrl.cli.actor import ActorOptions
    from zmqrl.cli.evaluate import EvalOptions
    from zmqrl.cli.learner import RunOptions

    verbs = "`zmqrl train` and `zmqrl learner`"
    return {verbs: RunOptions, "`zmqrl actor`": ActorOptions, "`zmqrl eval`": EvalOptions}


def _section(kind: type) -> list[str]:
    """The documentation of one class, and a table of its fields."""
    hints, defaults, documentation = get_type_hints(kind), _defaults(kind), field_documentation(kind)
    lines = [inspect.getdoc(kind) or "", "", "| flag | default | meaning |", "| --- | --- | --- |"]
    for name in _names(kind):
        usage = "RUN" if name == "run" else _usage(name, hints[name]).replace("|", "\\|")
        lines.append(f"| `{usage}` | {_shown(defaults[name])} | {documentation[name]} |")
    return [*lines, ""]


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or kind.__name__).splitlines()[0]


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _defaults(kind: Any) -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _spellings(name: str, kind: Any) -> list[str]:
    return [_flag(name), _flag(f"no_{name}")] if kind is bool else [_flag(name)]


def _usage(name: str, kind: Any) -> str:
    kind, _ = _without_none(kind)
    if kind is bool:
        return " | ".join(_spellings(name, kind))
    if get_origin(kind) is Literal:
        return f"{_flag(name)} {'|'.join(get_args(kind))}"
    words = {int: "N", float: "X", str: "TEXT", tuple: "N,N,...", dict: "KEY=VALUE"}
    return f"{_flag(name)} {words[get_origin(kind) or kind]}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value not in ("", {}) else "empty"


if __name__ == "__main__":
    print(configuration_page())
