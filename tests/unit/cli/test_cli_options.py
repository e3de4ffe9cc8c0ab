"""Flags from dataclasses, the order of what overrides what, and the sentences of what is refused; verbs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from zmqrl.cli import VERBS, main
from zmqrl.cli.options import CONFIG_CLASSES, INERT, Options, parse, print_configuration, resolved_config
from zmqrl.config import AsyncActorLearnerConfig, EnvConfig, PolicyConfig, PPOConfig, RunConfig, TransportConfig
from zmqrl.errors import Refused, UsageError

ENV = ["--env", "My-v0"]
"""An environment without a preset."""


@dataclass(frozen=True)
class ExtraOptions:
    """What this verb alone has."""

    run: str = ""
    """Folder of a run."""
    resume: bool = False
    """Go on with an earlier run."""
    bind: str = "tcp://127.0.0.1:0"
    """Address to listen on."""


@dataclass(frozen=True)
class PlotOptions:
    """Any number of folders."""

    runs: tuple[str, ...] = ()
    """Folders of runs."""


def read(*argv: str, **more: object) -> Options:
    return parse("train", argv, CONFIG_CLASSES, ExtraOptions, **more)  # type: ignore[arg-type]


def refusal(*argv: str, **more: object) -> str:
    with pytest.raises(UsageError) as caught:
        read(*argv, **more)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def config_file(tmp_path: Path) -> object:
    def write(data: object) -> str:
        path = tmp_path / "settings.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return write


def test_nothing_typed_gives_the_defaults() -> None:
    options = read(*ENV)
    assert options[AsyncActorLearnerConfig] == AsyncActorLearnerConfig()
    assert options[PPOConfig] == PPOConfig()
    assert options[ExtraOptions] == ExtraOptions()
    assert options.typed == {"env"}


def test_each_kind_of_field_has_its_spelling() -> None:
    options = read(
        *ENV,
        *["--num-actors", "2", "--learning-rate", "1e-3", "--total-env-steps", "1e5", "--seed=7"],
        *["--use-vtrace", "--no-tensorboard", "--hidden-sizes", "32,16", "--activation", "relu"],
        *["--clip-range-vf", "none", "--target-kl", "0.02", "--stop-at-return", "-100"],
        *["--env-kwargs", "length=5", "--env-kwargs", "mode=easy", "--env-kwargs", "flag=true"],
        *["--resume", "--bind", "tcp://*:5555"],
    )
    assert options[AsyncActorLearnerConfig] == AsyncActorLearnerConfig(
        num_actors=2, total_env_steps=100_000, seed=7, use_vtrace=True
    )
    assert options[PPOConfig] == PPOConfig(learning_rate=1e-3, clip_range_vf=None, target_kl=0.02)
    assert options[PolicyConfig] == PolicyConfig(hidden_sizes=(32, 16), activation="relu")
    assert options[RunConfig] == RunConfig(tensorboard=False, stop_at_return=-100.0)
    assert options[EnvConfig].env_kwargs == {"length": 5, "mode": "easy", "flag": True}
    assert options[ExtraOptions] == ExtraOptions(resume=True, bind="tcp://*:5555")
    assert "use_vtrace" in options.typed and "num_envs" not in options.typed


def test_a_flag_overrides_the_file_overrides_the_preset_overrides_the_default(config_file, capsys) -> None:
    path = config_file({"num_steps": 64, "gamma": 0.5})
    options = read("--env", "CartPole-v1", "--config", path, "--num-steps", "16")
    config = options[AsyncActorLearnerConfig]
    assert (config.num_steps, config.gamma, config.gae_lambda, config.broadcast_every) == (16, 0.5, 0.9, 1)
    line = capsys.readouterr().err
    assert line.startswith("preset CartPole-v1: ") and line.count("\n") == 1
    assert "gae_lambda=0.9" in line and "num_steps" not in line and "gamma=" not in line


def test_the_file_may_name_the_environment_of_the_preset(config_file) -> None:
    assert read("--config", config_file({"env": "CartPole-v1"}))[AsyncActorLearnerConfig].gae_lambda == 0.9


def test_a_preset_that_changes_nothing_is_not_mentioned(config_file, capsys) -> None:
    first = read("--env", "CartPole-v1", "--seed", "3")
    capsys.readouterr()
    again = read("--config", config_file(resolved_config(first)))
    assert again.configs == first.configs
    assert capsys.readouterr().err == ""


def test_a_whole_run_file_serves_a_verb_that_needs_some_of_it(config_file) -> None:
    path = config_file(resolved_config(read(*ENV, "--lease", "7", "--seed", "3")))
    options = parse("actor", ["--config", path], [EnvConfig, TransportConfig], omit=["hole_timeout"])
    assert options[EnvConfig].env == "My-v0"
    assert options[TransportConfig] == TransportConfig(lease=7.0)
    assert list(options.configs) == [EnvConfig, TransportConfig]


def test_env_kwargs_of_the_file_are_completed_by_flags(config_file) -> None:
    path = config_file({"env": "My-v0", "env_kwargs": {"a": 1, "b": 2}})
    assert read("--config", path, "--env-kwargs", "b=3")[EnvConfig].env_kwargs == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--num-actor", "2"], ["--num-actor", "did you mean --num-actors?"]),
        (["--learning-rat=1"], ["--learning-rat", "--learning-rate"]),
        (["--num_envs", "2"], ["unknown option --num_envs", "--num-envs?"]),
        (["--num-env", "2"], ["unknown option --num-env", "--num-envs?"]),
        (["--confg", "x"], ["--config"]),
        (["-n", "2"], ["unknown option -n"]),
        (["stray"], ["unexpected argument 'stray'"]),
        (["--seed"], ["--seed needs a value"]),
        (["--seed", "--use-vtrace"], ["--seed needs a value"]),
        (["--seed", "many"], ["--seed many", "a whole number is expected"]),
        (["--seed", "1.5"], ["--seed 1.5", "a whole number"]),
        (["--gamma", "high"], ["--gamma high", "a number is expected"]),
        (["--target-kl", "low"], ["a number or none"]),
        (["--hidden-sizes", "64,b"], ["--hidden-sizes b"]),
        (["--fill", "rows"], ["--fill rows", "columns, quota"]),
        (["--use-vtrace=yes"], ["--use-vtrace takes no value", "--no-use-vtrace"]),
        (["--env-kwargs", "alone"], ["key=value"]),
        (["--seed", "1", "--seed", "2"], ["--seed is given twice"]),
        (["--use-vtrace", "--no-use-vtrace"], ["given twice"]),
        (["--env-kwargs", "a=1", "--env-kwargs", "a=2"], ["given twice for a"]),
        (["--num-envs", "0"], ["num_envs = 0", "at least 1"]),
        (["--gamma", "nan"], ["gamma = nan", "between 0 and 1"]),
        (["--max-lead-steps", "5"], ["max_lead_steps = 5", "deadlock"]),
        (["--config", "absent.json"], ["cannot read --config absent.json", "No such file"]),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(argv: list[str], parts: list[str]) -> None:
    sentence = refusal(*ENV, *argv)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"num_step": 1}, ["unknown field num_step", "did you mean num_steps?"]),
        ({"PPOConfig": {"batchsize": 1}}, ["PPOConfig.batchsize", "batch_size"]),
        ({"PPOConfig": {"num_steps": 1}}, ["PPOConfig.num_steps"]),
        ({"PPOConfig": 3}, ["PPOConfig is not an object"]),
        ({"num_steps": 1.5}, ["num_steps = 1.5", "a whole number"]),
        ({"num_steps": True}, ["num_steps = true", "a whole number"]),
        ({"num_steps": "8"}, ['num_steps = "8"', "a whole number"]),
        ({"use_vtrace": 1}, ["true or false"]),
        ({"env": None}, ["a text"]),
        ({"hidden_sizes": [64, "b"]}, ["hidden_sizes", "a whole number"]),
        ({"hidden_sizes": 64}, ["a list of whole numbers"]),
        ({"fill": "rows"}, ["columns, quota"]),
        ({"num_envs": 0}, ["num_envs = 0"]),
        ({"seed": 1, "AsyncActorLearnerConfig": {"seed": 2}}, ["seed is given twice"]),
        ('{"seed": 1, "seed": 2}', ["seed is given twice"]),
        ('{"gamma": NaN}', ["NaN is not JSON"]),
        ("[1]", ["a JSON object"]),
        ("seed = 1", ["not a JSON file"]),
        ({"vtrace_c_bar": 2.0}, ["--vtrace-c-bar would do nothing"]),
        ({"resume": True}, ["unknown field resume"]),
    ],
)
def test_a_file_is_held_to_the_same_rules(config_file, content: object, parts: list[str]) -> None:
    sentence = refusal(*ENV, "--config", config_file(content))
    for part in parts:
        assert part in sentence


def test_numbers_of_a_file_may_be_whole_where_fractions_are_allowed(config_file) -> None:
    options = read(*ENV, "--config", config_file({"gamma": 1, "target_kl": None, "hidden_sizes": [8]}))
    assert (options[AsyncActorLearnerConfig].gamma, options[PPOConfig].target_kl) == (1.0, None)
    assert options[PolicyConfig].hidden_sizes == (8,)


@pytest.mark.parametrize(
    ("useless", "useful"),
    [
        (["--vtrace-rho-bar", "2"], ["--vtrace-rho-bar", "2", "--use-vtrace"]),
        (["--vtrace-c-bar", "1"], ["--vtrace-c-bar", "1", "--use-vtrace"]),
        (["--gae-lambda", "0.9", "--use-vtrace"], ["--gae-lambda", "0.9"]),
        (["--max-chunk-bytes", "9000", "--chunk-steps", "8"], ["--max-chunk-bytes", "9000"]),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(useless: list[str], useful: list[str]) -> None:
    assert f"{useless[0]} would do nothing" in refusal(*ENV, *useless)
    assert read(*ENV, *useful).typed >= {useful[0][2:].replace("-", "_")}


def test_the_refusals_name_fields_that_exist() -> None:
    known = {name for options in [read(*ENV)] for fields in resolved_config(options).values() for name in fields}
    assert {inert.field for inert in INERT} <= known


def test_a_preset_with_lambda_does_not_forbid_vtrace() -> None:
    assert read("--env", "CartPole-v1", "--use-vtrace")[AsyncActorLearnerConfig].use_vtrace


def test_a_field_that_the_verb_does_not_need_is_no_flag_of_it() -> None:
    assert read(*ENV, "--lease", "9")[TransportConfig].lease == 9.0
    assert "--lease does nothing for zmqrl train" in refusal(*ENV, "--lease", "9", omit=["lease"])
    with pytest.raises(UsageError, match="--num-steps does nothing for zmqrl actor"):
        parse("actor", ["--num-steps", "9"], [EnvConfig])


def test_a_verb_has_defaults_of_its_own(config_file, capsys) -> None:
    own = {"fill": "quota", "num_steps": 4}
    assert read(*ENV, defaults=own)[AsyncActorLearnerConfig] == AsyncActorLearnerConfig(fill="quota", num_steps=4)
    assert read(*ENV, defaults=own).typed == {"env"}
    assert read("--env", "CartPole-v1", defaults=own)[AsyncActorLearnerConfig].num_steps == 32
    path = config_file({"num_steps": 8})
    config = read(*ENV, "--fill", "columns", "--config", path, defaults=own)[AsyncActorLearnerConfig]
    assert (config.fill, config.num_steps) == ("columns", 8)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        read("--help", defaults=own)
    assert "--fill columns|quota  (quota)" in capsys.readouterr().out


def test_a_class_may_be_completed_by_the_verb() -> None:
    assert "env = ''" in refusal()
    assert read(complete_later=[EnvConfig])[EnvConfig] == EnvConfig()


def test_positional_arguments() -> None:
    assert read("runs/a", *ENV, positional="run")[ExtraOptions].run == "runs/a"
    assert "unexpected argument 'runs/b'" in refusal("runs/a", "runs/b", positional="run")
    options = parse("plot", ["a", "b", "c"], [], PlotOptions, positional="runs")
    assert options[PlotOptions].runs == ("a", "b", "c")
    with pytest.raises(UsageError, match="unknown option --config"):
        parse("plot", ["--config", "x"], [], PlotOptions, positional="runs")


def test_dry_run_prints_strict_json_that_serves_as_a_file(config_file, capsys) -> None:
    options = read(*ENV, "--hidden-sizes", "8,8", "--dry-run")
    assert options.dry_run
    assert print_configuration(options) == 0
    printed = capsys.readouterr().out
    assert list(json.loads(printed)) == [kind.__name__ for kind in CONFIG_CLASSES]
    assert read("--config", config_file(printed)).configs == options.configs


def test_only_a_verb_that_makes_a_run_has_a_dry_run() -> None:
    with pytest.raises(UsageError, match="unknown option --dry-run"):
        parse("actor", [*ENV, "--dry-run"], [EnvConfig])


def test_help_lists_every_flag_with_default_and_meaning(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help", "--nonsense", omit=["lease"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in ["--num-actors N  (4)", "--use-vtrace | --no-use-vtrace  (no)", "--bind TEXT", "--dry-run", "--config"]:
        assert flag in text
    assert "Environments per actor" in text and "Address to listen on." in text
    assert "--lease" not in text
    assert max(map(len, text.splitlines())) <= 110


# --- main ----------------------------------------------------------------------------------------------


@pytest.fixture
def verb(monkeypatch) -> object:
    """Let `zmqrl train` do something else."""

    def replace(function: object) -> None:
        monkeypatch.setitem(sys.modules, "zmqrl.cli.train", SimpleNamespace(main=function))

    return replace


def test_help_names_every_verb(capsys) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, entry in VERBS.items():
        assert f"{name:<9} {entry.summary}" in text


def test_version(capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "zmqrl 0.1.0\n"


@pytest.mark.parametrize(
    ("argv", "part"), [(["trian"], "did you mean 'train'?"), ([], "a verb is missing"), (["--env"], "before --env")]
)
def test_a_wrong_verb_is_a_usage_error(capsys, argv: list[str], part: str) -> None:
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.out == "" and part in output.err


def test_the_verb_gets_the_rest_of_the_line_and_gives_the_exit_code(verb) -> None:
    seen: list[list[str]] = []
    verb(lambda argv: seen.append(argv) or 4)
    assert main(["train", "--seed", "1"]) == 4
    assert seen == [["--seed", "1"]]


def test_an_error_is_one_line_and_its_exit_code(verb, capsys) -> None:
    def refuse(argv: list[str]) -> int:
        raise Refused("spaces", "obs: learner has A, this actor B")

    verb(refuse)
    assert main(["train"]) == 78
    assert capsys.readouterr().err == "zmqrl train: error: obs: learner has A, this actor B\n"


def test_ctrl_c_is_130(verb) -> None:
    def interrupt(argv: list[str]) -> int:
        raise KeyboardInterrupt

    verb(interrupt)
    assert main(["train"]) == 130
