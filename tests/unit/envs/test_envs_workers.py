"""Environments in processes of their own: faults reach the parent as text, and no process outlives its parent."""

import os
import select
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from zmqrl.config import EnvConfig
from zmqrl.envs import make_envs
from zmqrl.envs.members import close_workers
from zmqrl.errors import EnvironmentFault

HANG = {"how": "hang", "at": 1}


def probe(name, **kwargs):
    return EnvConfig(f"zmqrl.envs.probes:{name}-v0", kwargs, "async")


def ends(pidfd, seconds):
    """Whether the process of the descriptor ended within the time."""
    return bool(select.select([pidfd], [], [], seconds)[0])


def pidfds(envs):
    return [os.pidfd_open(process.pid) for process in envs._envs.processes]


@pytest.mark.parametrize("how", ["raise", "unpicklable"])
def test_a_users_exception_arrives_with_its_text_its_traceback_and_its_place(how):
    with make_envs(probe("Fail", how=how, at=12), 2) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault) as raised:
            for _ in range(12):
                envs.step(np.zeros(2, np.int64))
        text = str(raised.value)
        assert text.startswith("environment 0, episode 2, step 2: ValueError: the probe fails at step 12")
        assert "probes.py" in text
        assert "in _fail" in text


@pytest.mark.parametrize(("how", "cause"), [("exit", "exit code 9"), ("segfault", "ended by SIGSEGV")])
def test_a_lost_worker_is_named_with_the_way_it_ended(how, cause):
    with make_envs(probe("Fail", how=how, at=3), 2) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=f"environment 0: its process .*{cause}.*: 2, 2"):
            for _ in range(3):
                envs.step(np.zeros(2, np.int64))


def test_a_worker_that_cannot_construct_its_environment_is_a_fault_and_leaves_no_process(tmp_path, monkeypatch, capfd):
    (tmp_path / "only_here.py").write_text(
        f"import os\nfrom zmqrl.envs.probes import Count\n"
        f"def make():\n    assert os.getpid() == {os.getpid()}, 'no licence'\n    return Count()\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault, match="ended before its first step"):
        make_envs(EnvConfig("only_here:make", vectorization="async"), 2)
    assert "no licence" in capfd.readouterr().err


def test_no_worker_is_left_after_close():
    envs = make_envs(probe("Count"), 2)
    workers = pidfds(envs)
    envs.reset(0)
    envs.close()
    envs.close()  # twice is once
    assert all(ends(worker, 0) for worker in workers)


def test_a_hanging_worker_is_ended_by_close_while_a_step_waits_for_it():
    envs = make_envs(probe("Fail", **HANG), 2)
    workers = pidfds(envs)
    envs.reset(0)
    raised = []

    def wait():
        try:
            envs._envs.step_wait()
        except Exception as error:
            raised.append(error)

    envs._envs.step_async(np.zeros(2, np.int64))  # read by the workers before the word to close
    stepping = threading.Thread(target=wait)
    stepping.start()
    close_workers(envs._envs, seconds=0.2)
    stepping.join(10)
    assert not stepping.is_alive()
    assert len(raised) == 1
    assert all(ends(worker, 0) for worker in workers)


def test_hanging_workers_die_with_a_parent_that_is_killed():
    program = f"""
import numpy as np
from zmqrl.config import EnvConfig
from zmqrl.envs import make_envs
if __name__ == "__main__":
    envs = make_envs(EnvConfig("zmqrl.envs.probes:Fail-v0", {HANG!r}, "async"), 2)
    envs.reset(0)
    print(*[process.pid for process in envs._envs.processes], flush=True)
    envs.step(np.zeros(2, np.int64))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        workers = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert not ends(os.pidfd_open(parent.pid), 0.2)  # it hangs in its step
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert len(workers) == 2
    assert all(ends(worker, 10) for worker in workers)
