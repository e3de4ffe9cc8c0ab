"""One learner and its actors on this machine, each by its own command line.

Run it: python launch/local/launch.py --env CartPole-v1 --num-actors 2 [--dry-run] [options of zmqrl learner]
"""

import argparse
import shlex
import signal
import sys
import time
from pathlib import Path

from zmqrl.supervisor import Supervisor, command

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
parser.add_argument("--env", required=True)
parser.add_argument("--num-actors", default=2, type=int)
parser.add_argument("--run-dir", default=f"runs/local-{time.strftime('%Y%m%d-%H%M%S')}", type=Path)
parser.add_argument("--dry-run", action="store_true", help="print the command lines only")


def main() -> int:
    """Start the learner, then the actors; returns the exit code of the learner."""
    recipe, learners = parser.parse_known_args()
    join = recipe.run_dir / "join"
    common = ["--env", recipe.env]
    learner_words = command(
        "learner", *common, "--num-actors", str(recipe.num_actors), "--run-dir", str(recipe.run_dir), *learners
    )
    actor_words = command("actor", *common, "--join", str(join))
    if recipe.dry_run:
        print(*map(shlex.join, [learner_words, *[actor_words] * recipe.num_actors]), sep="\n")
        return 0
    if join.exists():
        parser.error(f"{join} exists: a run is going on there, or was killed; remove it, or name another --run-dir")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Supervisor() as supervisor:
        learner = supervisor.start("learner", learner_words)
        try:
            while not join.exists() and learner.exit_code is None:
                time.sleep(0.01)
            for number in range(recipe.num_actors):
                supervisor.start(f"actor-{number}", actor_words)
            learner.process.wait()
        except KeyboardInterrupt:
            learner.signal(signal.SIGINT)
            learner.process.wait()
        supervisor.wait(supervisor.children, timeout=5.0)
    return learner.exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
