import numpy as np
import pytest
import torch

from zmqrl.config import EnvConfig
from zmqrl.envs import make_envs, wrap_envs
from zmqrl.envs.probes import AB, vector_probe
from zmqrl.errors import UsageError
from zmqrl.evaluation import evaluate_policy


class Coin(torch.nn.Module):
    """Takes action 1 with probability 0.8, whatever it sees; the mode is 1."""

    def act(self, observations, generator, deterministic=False):
        assert not self.training
        assert torch.is_inference_mode_enabled()
        chance = torch.rand(len(observations), generator=generator)
        actions = torch.ones(len(observations), dtype=torch.int64) if deterministic else (chance < 0.8).long()
        return actions, torch.zeros(len(observations))

    def environment_actions(self, actions):
        return actions.numpy()


def cartpoles(num_envs=4):
    return make_envs(EnvConfig("CartPole-v1"), num_envs)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_seed_gives_the_same_result_also_on_used_environments(deterministic):
    def evaluate(envs, seed):
        return evaluate_policy(Coin(), envs, episodes=20, deterministic=deterministic, seed=seed)

    with cartpoles() as envs:
        first = evaluate(envs, 3)
        assert evaluate(envs, 4).mean_return != first.mean_return
        assert evaluate(envs, 3) == first
    with cartpoles() as envs:
        assert evaluate(envs, 3) == first
    assert first.deterministic is deterministic


def test_the_option_is_what_the_policy_does():
    with make_envs(EnvConfig("zmqrl.envs.probes:Identity-v0", {"n": 2}), 8) as envs:
        mode = evaluate_policy(Coin(), envs, episodes=400, deterministic=True)
        sampled = evaluate_policy(Coin(), envs, episodes=400, deterministic=False)
    assert mode.mean_length == sampled.mean_length == 1
    assert mode.mean_return != sampled.mean_return


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_each_environment_contributes_its_share_so_short_episodes_are_not_preferred(mode):
    share, seed = [7, 7, 6], 5
    seeds = np.random.SeedSequence(seed).generate_state(3).tolist()
    expected = []
    for episodes, own_seed in zip(share, seeds, strict=True):  # the same environments, one after the other
        env = AB("truncated", early=0.5)
        env.reset(seed=own_seed)
        for number in range(episodes):
            if number:
                env.reset()
            rewards, ended = [], False
            while not ended:
                _, reward, _, ended, _ = env.step(0)
                rewards.append(reward)
            expected.append((sum(rewards), len(rewards)))
    returns = np.array([value for value, _ in expected])
    assert {length for _, length in expected} == {1, 5}

    with wrap_envs(vector_probe("AB-early-v0", 3, mode, early=0.5)) as envs:
        result = evaluate_policy(Coin(), envs, episodes=20, seed=seed)
    assert result.episodes == 20
    assert result.mean_return == returns.mean()
    assert result.std_return == returns.std(ddof=1)
    assert result.standard_error == returns.std(ddof=1) / np.sqrt(20)
    assert result.confidence_interval == (
        result.mean_return - 1.96 * result.standard_error,
        result.mean_return + 1.96 * result.standard_error,
    )
    assert (result.min_return, result.max_return) == (0.0, 4.0)
    assert result.mean_length == np.mean([length for _, length in expected])


def test_fewer_episodes_than_environments_and_a_single_one():
    with wrap_envs(vector_probe("Count-v0", 4, "same_step", length=3)) as envs:
        assert evaluate_policy(Coin(), envs, episodes=2).episodes == 2
        single = evaluate_policy(Coin(), envs, episodes=1)
    assert (single.mean_return, single.mean_length, single.std_return) == (3.0, 3.0, 0.0)
    assert single.standard_error is None
    assert single.confidence_interval is None


@pytest.mark.parametrize("training", [True, False])
def test_the_policy_is_left_as_it_was(training):
    policy = Coin().train(training)
    with cartpoles(1) as envs:
        evaluate_policy(policy, envs, episodes=1)
    assert policy.training is training


def test_no_episodes_are_refused():
    with cartpoles(1) as envs, pytest.raises(UsageError, match="episodes = 0"):
        evaluate_policy(Coin(), envs, episodes=0)
