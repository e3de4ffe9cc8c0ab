import gymnasium
import pytest

from zmqrl.envs import probes
from zmqrl.envs.probes import vector_probe


def episode(name, seed=0, action=0, **kwargs):
    env = gymnasium.make(name, disable_env_checker=True, **kwargs)
    observation, _ = env.reset(seed=seed)
    rows = [observation]
    rewards, ends = [], (False, False)
    while not any(ends) and len(rewards) < 50:
        observation, reward, *ends, _ = env.step(action)
        rows.append(observation)
        rewards.append(reward)
    return [row.tolist() for row in rows], rewards, tuple(ends)


@pytest.mark.parametrize(("name", "ends"), [("trunc", (False, True)), ("term", (True, False)), ("both", (True, True))])
def test_ab_pays_in_b_only_and_ends_as_its_name_says(name, ends):
    rows, rewards, ended = episode(f"AB-{name}-v0")
    assert rows == [[1, 0], *[[0, 1]] * 5]
    assert rewards == [0, 1, 1, 1, 1]
    assert ended == ends
    assert episode(f"AB-{name}-v0", length=2)[1] == [0, 1]


def test_ab_early_is_truncated_after_one_step_in_nine_of_ten_episodes():
    env = gymnasium.make("AB-early-v0", disable_env_checker=True)
    env.reset(seed=0)
    lengths = []
    for _ in range(2000):
        env.reset()
        length, ended = 0, False
        while not ended:
            _, _, terminated, ended, _ = env.step(0)
            length += 1
            assert not terminated
        lengths.append(length)
    assert set(lengths) == {1, 5}
    assert 0.88 < lengths.count(1) / 2000 < 0.92


def test_last_row_pays_each_num_steps_steps_and_never_ends():
    rows, rewards, ends = episode("LastRow-v0", num_steps=4)
    assert [row.index(1) for row in rows[:6]] == [0, 1, 2, 3, 0, 1]
    assert rewards[:9] == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert ends == (False, False)


def test_identity_rewards_the_number_shown():
    for seed in range(4):
        rows, rewards, ends = episode("Identity-v0", seed, action=2, n=3)
        assert rewards == [rows[0][2]]
        assert ends == (True, False)


def test_fail_fails_only_where_told_and_only_once_per_file(tmp_path):
    envs = vector_probe("Fail-v0", 2, "same_step", at=2, only=1, once=str(tmp_path / "failed"))
    envs.reset(seed=0)
    envs.step([0, 0])
    with pytest.raises(ValueError, match="fails at step 2"):
        envs.step([0, 0])
    again = vector_probe("Fail-v0", 2, "same_step", at=2, only=1, once=str(tmp_path / "failed"))
    again.reset(seed=0)
    for _ in range(3):
        again.step([0, 0])


def test_sleep_takes_its_time_in_each_step(monkeypatch):
    slept = []
    monkeypatch.setattr(probes.time, "sleep", slept.append)
    episode("Sleep-v0", seconds=0.25)
    assert slept == [0.25] * 10
