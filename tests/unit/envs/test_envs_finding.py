import multiprocessing
import sys

import gymnasium
import numpy as np
import pytest

from zmqrl.config import EnvConfig
from zmqrl.envs import make_envs, read_spaces
from zmqrl.errors import EnvironmentNotFound, UnsupportedSpace, UsageError
from zmqrl.spaces import BoxSpec, DiscreteSpec


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module in the current folder, which is not on the path of a console script."""
    (tmp_path / "own_worlds.py").write_text(
        """
import gymnasium
from gymnasium import spaces
from zmqrl.envs.probes import Count

class World(Count):
    pass

class Words(Count):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Text(4)

def furnished(length):
    return Count(length=length)

def number():
    return 7

class Needy(Count):
    def __init__(self):
        import no_such_simulator

def many(num_envs):
    from zmqrl.envs.probes import vector_probe
    return vector_probe("Count-v0", num_envs, "disabled")
"""
    )
    (tmp_path / "broken_worlds.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in ("own_worlds", "broken_worlds"):
        sys.modules.pop(name, None)


def test_spaces_are_read_without_keeping_an_environment():
    observation_space, action_space = read_spaces(EnvConfig(env="CartPole-v1"))
    assert isinstance(observation_space, BoxSpec)
    assert observation_space.shape == (4,)
    assert action_space == DiscreteSpec(2)


@pytest.mark.parametrize("typed", ["CartPole-v3", "cartpole-v1", "CartPole"])
def test_an_unknown_id_is_answered_with_the_nearest_known_ones(typed):
    with pytest.raises(EnvironmentNotFound, match=rf"'{typed}'.*Nearest: .*CartPole-v1"):
        make_envs(EnvConfig(env=typed), 1)


def test_a_module_that_registers_is_imported_first():
    with make_envs(EnvConfig(env="zmqrl.envs.probes:Count-v0", env_kwargs={"length": 2}), 1) as envs:
        envs.reset(0)
        assert [envs.step(np.array([0])).episode_lengths.tolist() for _ in range(2)] == [[], [2]]


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(("typed", "kwargs"), [("World", {}), ("furnished", {"length": 4})])
def test_a_class_or_function_of_a_module_in_the_current_folder_is_accepted(typed, kwargs):
    with make_envs(EnvConfig(env=f"own_worlds:{typed}", env_kwargs=kwargs), 2) as envs:
        assert envs.reset(0).shape == (2, 3)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("typed", "error", "text"),
    [
        ("own_worlds:Wrld", EnvironmentNotFound, "Nearest: World"),
        ("no_worlds:World", EnvironmentNotFound, "'no_worlds' cannot be imported: ModuleNotFoundError"),
        ("broken_worlds:World", EnvironmentNotFound, "'broken_worlds' cannot be imported: ZeroDivisionError"),
        ("own_worlds:number", UsageError, "gave a int, which is no gymnasium.Env"),
        ("own_worlds:furnished", UsageError, "missing 1 required positional argument: 'length'"),
        ("own_worlds:Needy", EnvironmentNotFound, "No module named 'no_such_simulator'"),
        ("own_worlds:Words", UnsupportedSpace, r"observation: Text\("),
    ],
)
def test_what_cannot_be_made_is_named_with_its_reason(typed, error, text):
    for vectorization in ("sync", "async"):  # async: in this process already, before there is any worker
        with pytest.raises(error, match=text):
            make_envs(EnvConfig(typed, vectorization=vectorization), 2)
    assert not multiprocessing.active_children()


def test_wrong_arguments_of_a_registered_environment_are_a_usage_error():
    with pytest.raises(UsageError, match="gravitation"):
        make_envs(EnvConfig(env="CartPole-v1", env_kwargs={"gravitation": 1}), 1)


def test_a_missing_dependency_is_told_with_gymnasiums_own_remedy():
    def entry_point(**kwargs):
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[somewhere]"`')

    gymnasium.register("Needy-v0", entry_point)
    try:
        with pytest.raises(EnvironmentNotFound, match=r"pip install \"gymnasium\[somewhere\]\""):
            make_envs(EnvConfig(env="Needy-v0"), 1)
    finally:
        del gymnasium.registry["Needy-v0"]


def test_an_environment_without_an_own_vectorized_implementation_says_so():
    with pytest.raises(UsageError, match="set vectorization = sync or async"):
        make_envs(EnvConfig(env="Pendulum-v1", vectorization="vector_entry_point"), 2)


@pytest.mark.usefixtures("own_module")
def test_a_vectorized_environment_of_a_module_is_accepted_only_as_such():
    config = EnvConfig(env="own_worlds:many", vectorization="vector_entry_point")
    with make_envs(config, 3) as envs:
        assert envs.reset(0)[:, 0].tolist() == [0, 1, 2]
        assert envs.autoreset_mode == "disabled"
    assert read_spaces(config)[1] == DiscreteSpec(2)
    with pytest.raises(UsageError, match="vectorization = vector_entry_point"):
        make_envs(EnvConfig(env="own_worlds:many", env_kwargs={"num_envs": 2}), 2)
