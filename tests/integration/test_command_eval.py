"""`zmqrl eval`: JSON on standard output, the same for the same seed, and the run left as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from commands import Commands
from conftest import FinishedRun


def digest(run: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in run.rglob("*") if path.is_file()}


def test_the_same_seed_gives_the_same_numbers(commands: Commands, finished_run: FinishedRun) -> None:
    before = digest(finished_run.path)
    words = ("eval", finished_run.path, "--episodes", 20)
    sampling = ("--seed", 1, "--stochastic")
    variants = [(), (), sampling, sampling, ("--best",)]
    running = [commands.start(*words, *variant) for variant in variants]
    for process in running:
        process.ends(0)
        assert process.stderr == ""
    one, again, sampled, sampled_again, best = (process.stdout for process in running)
    assert one == again and sampled == sampled_again
    results = [json.loads(text) for text in (one, sampled, best)]
    assert results[0]["mean_return"] != results[1]["mean_return"]
    assert [result["deterministic"] for result in results] == [True, False, True]
    assert [result["seed"] for result in results] == [0, 1, 0]
    assert all(result["episodes"] == 20 and result["env"] == "CartPole-v1" for result in results)
    low, high = results[0]["confidence_interval"]
    assert 1.0 <= low <= results[0]["mean_return"] <= high <= 500.0
    assert results[2]["checkpoint"].endswith("best.safetensors")
    assert digest(finished_run.path) == before


WRONG = [
    ((), "name a run folder or a checkpoint"),
    (("nowhere",), "nowhere does not exist; name a run folder or a checkpoint"),
    ((".",), ". is not the folder of a run"),
    (("RUN", "again"), "unexpected argument 'again'"),
    (("RUN", "--episodes", "0"), "episodes = 0: must be at least 1"),
    (("RUN", "--seed", "-1"), "seed = -1: must be at least 0"),
    (("RUN", "--config", "RUN/config.json"), "unknown option --config"),
    (("RUN", "--env", "Acrobot-v1"), "obs: the policy was trained for Box(4,) float32, and"),
    (("RUN", "--num-envs", "3"), "--num-envs does nothing for zmqrl eval"),
    (("RUN/report.json",), "report.json is damaged, or no checkpoint"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) or "nothing" for words, _ in WRONG])
def test_odd_arguments(commands: Commands, finished_run: FinishedRun, words: tuple[str, ...], sentence: str) -> None:
    code = 1 if words == ("RUN/report.json",) else 2
    done = commands.run("eval", *(word.replace("RUN", str(finished_run.path)) for word in words), code=code)
    (line,) = done.stderr.splitlines()
    assert line.startswith("zmqrl eval: error: ") and sentence in line
    assert done.stdout == ""
