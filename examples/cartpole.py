"""CartPole by the API: one learner and two actors in this program, about thirty lines.

Run it: python examples/cartpole.py
"""

import torch

from zmqrl import (
    AsyncActorLearnerConfig,
    EnvConfig,
    PolicyConfig,
    PPOConfig,
    PPOTrainer,
    UpdateRecord,
    bind_learner,
    learner_loop,
    make_policy,
    read_spaces,
    spawn_actor,
)

GOAL = 300.0

torch.set_num_threads(1)  # fastest for small networks; where other processes need the cores, ten times as fast as two


def report(record: UpdateRecord) -> str | None:
    """Called after each update; a text ends the run."""
    mean = record.mean_episode_return or 0.0
    if record.update % 20 == 0:
        print(f"update {record.update}: {record.env_steps} env steps, mean return {mean:.1f}")
    return "goal reached" if mean >= GOAL and record.recent_episodes >= 100 else None


config = AsyncActorLearnerConfig(num_actors=2, num_envs=8, num_steps=32, total_env_steps=200_000, gamma=0.98, seed=1)
env = EnvConfig(env="CartPole-v1")
policy = make_policy(*read_spaces(env), PolicyConfig(), seed=config.seed)
trainer = PPOTrainer(policy, PPOConfig(learning_rate=2e-3, batch_size=256, n_epochs=6, ent_coef=0.0), seed=config.seed)

with bind_learner("tcp://127.0.0.1:0", env=env.env) as bus:
    actors = [spawn_actor(bus, env, num_envs=config.num_envs, process=True) for _ in range(config.num_actors)]
    trainer, outcome = learner_loop(config, trainer, bus, on_update=report)
    for actor in actors:
        stats = actor.join(timeout=60)
        print(f"actor {stats.agent_id} took {stats.steps_taken} steps, of which {stats.steps_received} were received")

print(f"{outcome.stopped_because}: mean return {outcome.mean_recent_episode_reward(100):.1f}")
