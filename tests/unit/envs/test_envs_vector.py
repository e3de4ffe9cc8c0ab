"""The three autoreset modes, faults, seeds, and the library's own vectorized CartPole."""

import json
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from zmqrl.config import EnvConfig
from zmqrl.envs import make_envs, wrap_envs
from zmqrl.envs.members import SameStepEnvironments
from zmqrl.envs.probes import Count, vector_probe
from zmqrl.errors import EnvironmentFault, UsageError

MODES = ("next_step", "same_step", "disabled")


def zeros(envs):
    return np.zeros(envs.num_envs, np.int64)


def run(envs, steps):
    """Transitions with copies of what a later step may overwrite, and the observation before each."""
    before, rows = envs.reset(7).copy(), []
    for _ in range(steps):
        transition = envs.step(zeros(envs))
        rows.append((before, transition))
        before = transition.observations.copy()
    return rows, before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_valid_rows_are_the_environments_own_steps_and_each_episode_is_reported_whole(mode, end, tmp_path):
    path = tmp_path / "calls"
    with wrap_envs(vector_probe("Count-v0", 3, mode, length=3, end=end, path=str(path))) as envs:
        assert envs.autoreset_mode == mode
        rows, _ = run(envs, 22)
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    real = sum(call["kind"] == "step" for call in calls)
    assert sum(np.count_nonzero(row.valid) for _, row in rows) == real
    assert real == 3 * (22 if mode != "next_step" else 17)  # next-step: each fourth row is a reset
    returns = np.concatenate([row.episode_returns for _, row in rows])
    lengths = np.concatenate([row.episode_lengths for _, row in rows])
    assert len(lengths) == sum(call["kind"] == "step" and call["step"] == 3 for call in calls)
    assert set(lengths.tolist()) == {3}
    assert set(returns.tolist()) == {3.0}
    assert returns.dtype == np.float64
    for _, row in rows:
        ended = np.flatnonzero(row.terminated | row.truncated)
        assert row.episode_index.tolist() == ended.tolist()
        assert row.rewards.dtype == np.float32
        assert row.rewards.tolist() == row.valid.astype(float).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_the_true_successor_of_each_valid_row_is_the_next_step_of_its_own_episode(mode):
    with wrap_envs(vector_probe("Count-v0", 3, mode, length=3)) as envs:
        rows, _ = run(envs, 14)
    for (before, row), (after, _) in pairwise(rows):
        successors = after.copy()
        if mode == "next_step":
            assert row.final_index.size == 0
        else:
            assert row.final_index.tolist() == np.flatnonzero(row.truncated).tolist()
        successors[row.final_index] = row.final_observations
        for index in np.flatnonzero(row.valid):
            environment, episode, step = before[index]
            assert successors[index].tolist() == [index, episode, step + 1]
            assert environment == index


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_the_observation_after_an_end_begins_the_next_episode(mode):
    with wrap_envs(vector_probe("Count-v0", 2, mode, length=2)) as envs:
        envs.reset(0)
        envs.step(zeros(envs))
        row = envs.step(zeros(envs))
        assert row.observations.tolist() == [[0, 2, 0], [1, 2, 0]]
        assert row.final_observations.tolist() == [[0, 1, 2], [1, 1, 2]]


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_a_terminated_row_sends_no_successor(mode):
    with wrap_envs(vector_probe("AB-both-v0", 2, mode, length=1)) as envs:
        envs.reset(0)
        row = envs.step(zeros(envs))
        assert row.terminated.all()
        assert row.truncated.all()
        assert row.final_index.size == 0
        assert row.final_observations.shape == (0, 2)


def test_a_next_step_artefact_ends_nothing_pays_nothing_and_ignores_a_filler():
    class Filling(SyncVectorEnv):  # a library that gives rubbish where the episode is being reset
        def step(self, actions):
            resetting = self._autoreset_envs.copy()
            observations, rewards, terminated, truncated, infos = super().step(actions)
            rewards[resetting], terminated[resetting] = np.nan, True
            self._autoreset_envs[resetting] = False
            return observations, rewards, terminated, truncated, infos

    with wrap_envs(Filling([lambda: Count(length=1)] * 2)) as envs:
        envs.reset(0)
        envs.step(zeros(envs))
        row = envs.step(zeros(envs))
        assert not row.valid.any()
        assert not row.terminated.any()
        assert row.rewards.tolist() == [0, 0]
        assert row.episode_index.size == 0
        assert row.observations.tolist() == [[0, 2, 0]] * 2


def test_a_final_observation_survives_an_environment_that_reuses_its_array():
    for vectorization in ("sync", "async"):
        kwargs = {"length": 2, "reuse": True}
        with make_envs(EnvConfig("zmqrl.envs.probes:Count-v0", kwargs, vectorization), 2) as envs:
            envs.reset(0)
            envs.step(zeros(envs))
            assert envs.step(zeros(envs)).final_observations.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("mode", MODES)
def test_reset_in_the_middle_begins_all_counts_anew(mode):
    with wrap_envs(vector_probe("Count-v0", 2, mode, length=3)) as envs:
        for steps in (2, 3):  # once inside an episode, once right after its end
            envs.reset(0)
            for _ in range(steps):
                envs.step(zeros(envs))
        envs.reset(0)
        rows = [envs.step(zeros(envs)) for _ in range(3)]
        assert all(row.valid.all() for row in rows)
        assert rows[2].episode_lengths.tolist() == [3, 3]
        assert rows[2].episode_returns.tolist() == [3.0, 3.0]


# --- trees, dtypes, actions ------------------------------------------------------------------------------


class Branches(gymnasium.Env):
    """A Dict of a Tuple and a Box, with a Tuple of actions; truncated at step 2; rewards the actions it got."""

    observation_space = spaces.Dict(
        [
            ("z", spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(0, 255, (2, 2), np.uint8)))),
            ("a", spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        ]
    )
    action_space = spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1, 1, (2,), np.float32)))

    def observe(self):
        image = np.full((2, 2), self.t, np.uint8)
        return {"a": np.array([self.t, 0.5]), "z": (-1 + self.t % 3, image)}  # float64, another order

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        action[1][:] = 0.0  # an environment may change what it is given
        return self.observe(), float(action[0]), False, self.t == 2, {}


@pytest.mark.parametrize("mode", [*MODES, "own"])
def test_trees_come_in_the_order_and_dtypes_of_their_space(mode):
    vector = (
        SameStepEnvironments([Branches] * 2)
        if mode == "own"
        else SyncVectorEnv([Branches] * 2, autoreset_mode=AutoresetMode[mode.upper()])
    )
    actions = (np.array([-1, 1]), np.full((2, 2), 0.5, np.float32))
    with wrap_envs(vector) as envs:
        observations = envs.reset(0)
        assert list(observations) == ["z", "a"]
        assert observations["a"].dtype == np.float32
        assert observations["z"][0].tolist() == [-1, -1]
        rows = [envs.step(actions) for _ in range(2)]
    assert rows[0].rewards.tolist() == [-1, 1]
    assert (actions[1] == 0.5).all()
    if mode != "next_step":
        final = rows[1].final_observations
        assert final["a"].tolist() == [[2, 0.5]] * 2
        assert final["a"].dtype == np.float32
        assert final["z"][0].tolist() == [1, 1]
        assert final["z"][1].shape == (2, 2, 2)
        assert final["z"][1].dtype == np.uint8


class Given(gymnasium.Env):
    """Returns what it was constructed with."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, observation, reward=0.0, result=None):
        self.observation_space, self.given = space, observation
        self.result = result or (observation, reward, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.result


FLOATS = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (Given(FLOATS, np.zeros(3, np.float32)), r"observation has shape \(3,\), its space says \(2,\)"),
        (Given(FLOATS, np.zeros(1, np.float32)), r"observation has shape \(1,\)"),  # not broadcast
        (Given(FLOATS, np.array(["a", "b"])), "observation has dtype <U1, its space says float32"),
        (Given(FLOATS, [[1.0], [1.0, 2.0]]), "observation is no array"),
        (Given(FLOATS, np.array([0, np.inf], np.float32)), r"observation\[1\] is inf; it must be a finite number"),
        (Given(FLOATS, np.array([0, 1e300])), r"observation\[1\] is inf"),
        (Given(spaces.Box(0, 255, (1,), np.uint8), np.array([0.5])), "dtype float64 and values that uint8"),
        (Given(spaces.Box(0, 255, (1,), np.uint8), np.array([256])), "dtype int64 and values that uint8"),
        (Given(spaces.Discrete(3), 3), r"observation is 3; it must be in Discrete\(3\)"),
        (Given(spaces.MultiDiscrete([2, 3]), np.array([1, 3])), r"observation\[1\] is 3"),
        (Given(spaces.MultiBinary(2), np.array([0, 2], np.int8)), r"observation\[1\] is 2"),
        (Given(spaces.Dict({"a": FLOATS}), {"b": np.zeros(2)}), "does not have the form of its space: KeyError 'a'"),
        (Given(FLOATS, np.zeros(2, np.float32), None), "with a number as reward"),
        (Given(FLOATS, np.zeros(2, np.float32), 1e39), "reward is 1e[+]39; it must be a finite float32"),
        (Given(FLOATS, None, result=(np.zeros(2, np.float32), 0.0, False, {})), r"step\(\) must return \(observation"),
    ],
)
def test_a_broken_promise_of_an_environment_is_named_with_its_place(env, text):
    right = Given(env.observation_space, env.observation_space.sample())
    with wrap_envs(SameStepEnvironments([lambda: right, lambda: env])) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=f"environment 1, episode 1, step 1: .*{text}"):
            envs.step(zeros(envs))


def test_a_safe_cast_is_made_without_a_word():
    space = spaces.Box(0, 255, (2,), np.uint8)
    with wrap_envs(SameStepEnvironments([lambda: Given(space, [3, 250])])) as envs:
        envs.reset(0)
        observations = envs.step(zeros(envs)).observations
        assert observations.dtype == np.uint8
        assert observations.tolist() == [[3, 250]]


@pytest.mark.parametrize("mode", [*MODES, "sync", "async"])
@pytest.mark.parametrize(("field", "named"), [("reward", "reward is nan"), ("observation", r"observation\[0\] is nan")])
def test_a_nan_is_named_with_environment_episode_step_and_field(mode, field, named):
    kwargs = {"at": 13, "field": field, "length": 10}
    name = "zmqrl.envs.probes:Bad-v0"
    vector = (
        make_envs(EnvConfig(name, kwargs, mode), 2)
        if mode in ("sync", "async")
        else wrap_envs(vector_probe("Bad-v0", 2, mode, **kwargs))
    )
    with vector as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=f"environment 0, episode 2, step 3: {named}"):
            for _ in range(20):
                envs.step(zeros(envs))


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_in_a_final_observation_is_named_with_the_step_that_gave_it(mode):
    with wrap_envs(vector_probe("Bad-v0", 2, mode, at=4, field="observation", length=4)) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=r"environment 0, episode 1, step 4: observation\[0\] is nan"):
            for _ in range(4):
                envs.step(zeros(envs))


def test_a_nan_in_a_first_observation_is_step_0_of_the_next_episode():
    class BadStart(Count):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed, options=options)
            return observation * (np.nan if self.episode == 2 else 1), info

    for mode in (None, *MODES):
        makers = [lambda: BadStart(length=2)]
        vector = (
            SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode.upper()]) if mode else SameStepEnvironments(makers)
        )
        with wrap_envs(vector) as envs:
            envs.reset(0)
            with pytest.raises(EnvironmentFault, match=r"environment 0, episode 2, step 0: observation\[0\] is nan"):
                for _ in range(3):
                    envs.step(zeros(envs))


def test_an_environments_own_exception_passes_with_its_type_its_traceback_and_its_place():
    with make_envs(EnvConfig("zmqrl.envs.probes:Fail-v0", {"at": 12}), 2) as envs:
        envs.reset(0)
        with pytest.raises(ValueError, match="the probe fails at step 12") as raised:
            for _ in range(12):
                envs.step(zeros(envs))
    assert raised.value.__notes__ == ["raised by step() in environment 0, episode 2, step 2"]
    assert raised.traceback[-1].name == "_fail"


# --- vectorized environments of others --------------------------------------------------------------------


class OneStep(VectorEnv):
    """Two environments that are truncated at each step, and whose infos are given."""

    num_envs = 2
    single_observation_space = spaces.Box(0, 9, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, infos, mode=AutoresetMode.SAME_STEP):
        self.infos = infos
        self.metadata = {"autoreset_mode": mode} if mode else {}

    def reset(self, *, seed=None, options=None):
        assert isinstance(seed, int)  # one for all
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.ones(2), np.zeros(2, bool), np.ones(2, bool), self.infos


def test_batched_final_observations_are_understood():
    with wrap_envs(OneStep({"final_obs": np.array([[3.0], [4.0]])})) as envs:
        envs.reset(0)
        assert envs.step(zeros(envs)).final_observations.tolist() == [[3], [4]]


@pytest.mark.parametrize("infos", [{}, {"final_obs": np.array([np.zeros(1), None], dtype=object)}])
def test_same_step_autoreset_without_the_final_observation_is_a_fault(infos):
    with wrap_envs(OneStep(infos)) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match="no infos\\['final_obs'\\]"):
            envs.step(zeros(envs))


@pytest.mark.parametrize("mode", [None, "whenever"])
def test_an_undeclared_autoreset_mode_is_refused(mode):
    with pytest.raises(UsageError, match="autoreset mode"):
        wrap_envs(OneStep({}, mode))


def test_a_column_of_the_wrong_length_is_refused():
    class Short(OneStep):
        def step(self, actions):
            return np.zeros((2, 1), np.float32), np.ones(3), np.zeros(2, bool), np.zeros(2, bool), {}

    class Thin(OneStep):
        def step(self, actions):
            return np.zeros((1, 1), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}

    for kind, text in ((Short, r"rewards of shape \(3,\)"), (Thin, r"shape \(1, 1\), its space says \(2, 1\)")):
        envs = wrap_envs(kind({}))
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=text):
            envs.step(zeros(envs))


def test_valid_rows_of_the_vectorized_cartpole_are_real_steps_and_the_others_its_resets():
    config = EnvConfig("CartPole-v1", vectorization="vector_entry_point")
    actions = np.random.default_rng(0).integers(0, 2, (200, 4))
    single = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    single.reset(seed=0)
    artefacts = 0
    with make_envs(config, 4) as envs:
        assert envs.autoreset_mode == "next_step"
        before, ended = envs.reset(3).copy(), np.zeros(4, bool)
        for action in actions:
            row = envs.step(action)
            assert row.valid.tolist() == (~ended).tolist()
            for index in range(4):
                if row.valid[index]:
                    single.state = before[index].astype(np.float64)
                    single.steps_beyond_terminated = None
                    expected, reward, terminated, _, _ = single.step(action[index])
                    np.testing.assert_allclose(row.observations[index], expected, rtol=1e-5, atol=1e-6)
                    assert (row.rewards[index], row.terminated[index]) == (reward, terminated)
                else:
                    artefacts += 1
                    assert np.abs(row.observations[index]).max() <= 0.05
                    assert row.rewards[index] == 0
            before, ended = row.observations.copy(), row.terminated | row.truncated
    assert artefacts > 20


# --- seeds -----------------------------------------------------------------------------------------------


def trajectory(envs, seed, steps=150):
    parts = [envs.reset(seed).copy()]
    actions = np.random.default_rng(5).integers(0, 2, (steps, envs.num_envs))
    for action in actions:
        row = envs.step(action)
        parts += [row.observations.copy(), row.rewards, row.terminated, row.final_observations, row.episode_lengths]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_the_same_seed_gives_the_same_trajectories_and_another_seed_others(vectorization):
    with make_envs(EnvConfig("CartPole-v1", vectorization=vectorization), 2) as envs:
        first = trajectory(envs, 1)
        assert trajectory(envs, 2) != first
        assert trajectory(envs, 1) == first


def test_async_is_sync_bit_for_bit():
    kwargs = {"max_episode_steps": 15}
    with make_envs(EnvConfig("CartPole-v1", kwargs), 3) as envs:
        expected = trajectory(envs, 11)
    with make_envs(EnvConfig("CartPole-v1", kwargs, "async"), 3) as envs:
        assert trajectory(envs, 11) == expected


def test_gymnasiums_own_vector_gives_the_same_as_ours():
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * 3
    with make_envs(EnvConfig("CartPole-v1", {"max_episode_steps": 15}), 3) as envs:
        expected = trajectory(envs, 11)
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        with wrap_envs(SyncVectorEnv(makers, autoreset_mode=mode)) as envs:
            assert trajectory(envs, 11) == expected


def test_each_environment_has_a_seed_of_its_own_and_goes_on_from_it():
    with make_envs(EnvConfig("CartPole-v1", {"max_episode_steps": 1}), 8) as envs:
        starts = [envs.reset(0).copy()]
        starts += [envs.step(zeros(envs)).observations.copy() for _ in range(5)]
    assert len({row.tobytes() for start in starts for row in start}) == 6 * 8


def test_closing_one_environment_closes_all_also_if_one_refuses():
    closed = []

    class Closing(Count):
        def close(self):
            closed.append(self.number)
            if self.number == 1:
                raise RuntimeError("does not close")

    envs = wrap_envs(SameStepEnvironments([lambda n=n: Closing(number=n) for n in range(3)]))
    with pytest.raises(RuntimeError, match="does not close"):
        envs.close()
    assert sorted(closed) == [0, 1, 2]


def test_environments_with_different_spaces_are_refused():
    makers = [lambda: Given(FLOATS, None), lambda: Given(spaces.Box(-1, 1, (3,), np.float32), None)]
    with pytest.raises(UsageError, match="environment 1 has other spaces than environment 0: observation"):
        SameStepEnvironments(makers)
