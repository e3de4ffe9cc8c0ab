"""Wire efficiency: what is left of a bare PUSH/PULL of the same bytes once experience is encoded, sent and decoded.

    python -m benchmarks.wire [--sizes 4,16,64,256,1024] [--seconds 0.5] [--repeats 5]

Two processes over TCP on this machine, in turn for each size (KiB of a chunk's body):
  bare    frames that are ready, sent and received, with the options of zmqrl's own sockets
  codec   encode_experience, the same sockets, decode_experience with all its checks
  bus     the whole transport, from the actor's `send` to the learner's `receive`: order, credit, accounts, threads
Prints env steps/s of each; `wire_efficiency.<size>` is codec / bare, and in `bus` bus / bare. The last line holds all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from benchmarks.measure import show, spread
from zmqrl.codec import ExperienceLayout, decode_experience, encode_experience
from zmqrl.messages import Experience, PolicyBroadcast
from zmqrl.session import PROTOCOL_VERSION, Hello, Terms
from zmqrl.spaces import BoxSpec, DiscreteSpec
from zmqrl.throttle import ActorThrottle
from zmqrl.transport import bind_learner, connect_actor
from zmqrl.transport.sockets import open_socket

STEPS, ENVS = 32, 8
WINDOW = 16
"""Chunks under way at once."""
ACTIONS = DiscreteSpec(2)


def main() -> None:
    parser = argparse.ArgumentParser(description="wire efficiency of zmqrl")
    parser.add_argument("--sizes", default="4,16,64,256,1024", help="KiB of a chunk")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each measurement, about")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    kinds: dict[str, Callable[[ExperienceLayout, float], float]] = {"bare": bare, "codec": codec, "bus": bus}
    efficiency = {}
    for kib in map(int, args.sizes.split(",")):
        layout = layout_of(kib << 10)
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(args.repeats):
            for kind, measure in kinds.items():
                rates[kind].append(measure(layout, args.seconds))
        for kind, values in rates.items():
            show(f"wire.{kind}.{kib}KiB", spread(values, 0), unit="env steps/s")
        codec_ratio, bus_ratio = (
            statistics.median(one / base for one, base in zip(rates[kind], rates["bare"], strict=True))
            for kind in ("codec", "bus")
        )
        efficiency[f"wire_efficiency.{kib}KiB"] = {"codec": round(codec_ratio, 3), "bus": round(bus_ratio, 3)}
        show(f"wire_efficiency.{kib}KiB", round(codec_ratio, 3), bus=round(bus_ratio, 3))
    show("wire_efficiency", efficiency)


# --- what is sent -------------------------------------------------------------------------------------


def layout_of(size: int) -> ExperienceLayout:
    """A chunk of about `size` bytes: as many numbers per observation as that makes, in at most STEPS x ENVS rows."""
    envs = ENVS if size > 8192 else ENVS // 4
    layout = ExperienceLayout(BoxSpec("float32", (1,), -np.inf, np.inf), ACTIONS, envs, STEPS)
    spare = size - layout.plan(0, 0, False)[1]
    numbers = 1 + max(0, spare) // (4 * envs * (STEPS + 1))
    return ExperienceLayout(BoxSpec("float32", (numbers,), -np.inf, np.inf), ACTIONS, envs, STEPS)


def make_experience(layout: ExperienceLayout, agent_id: int = 0) -> Experience:
    steps, envs = layout.chunk_steps, layout.num_envs
    rows = steps, envs
    return Experience(
        agent_id=agent_id,
        observations=np.ones((steps + 1, envs, *layout.observation_space.shape), np.float32),
        actions=np.ones(rows, np.int64),
        rewards=np.ones(rows, np.float32),
        terminated=np.zeros(rows, np.bool_),
        truncated=np.zeros(rows, np.bool_),
        valid=np.ones(rows, np.bool_),
        log_probs=np.full(rows, -0.7, np.float32),
        versions=np.zeros(steps, np.int64),
        final_index=np.zeros((0, 2), np.int32),
        final_observations=np.zeros((0, *layout.observation_space.shape), np.float32),
        episode_index=np.zeros((0, 2), np.int32),
        episode_returns=np.zeros(0, np.float64),
        episode_lengths=np.zeros(0, np.int64),
    )


# --- bare and codec: one PUSH, one PULL ---------------------------------------------------------------


def bare(layout: ExperienceLayout, seconds: float) -> float:
    return through_socket(layout, seconds, lambda frames: None, encodes=False)


def codec(layout: ExperienceLayout, seconds: float) -> float:
    return through_socket(layout, seconds, lambda frames: decode_experience(frames, layout), encodes=True)


def through_socket(
    layout: ExperienceLayout, seconds: float, use: Callable[[list[Any]], Any], *, encodes: bool
) -> float:
    """Env steps/s from the first message on."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pull = open_socket(context, zmq.PULL, {zmq.RCVHWM: WINDOW})
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    sender = start(push, port, layout, encodes)
    use(pull.recv_multipart(copy=False))
    messages, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        use(pull.recv_multipart(copy=False))
        messages += 1
    elapsed = time.monotonic() - began
    sender.terminate()
    sender.join()
    context.destroy(linger=0)
    return messages * layout.chunk_steps * layout.num_envs / elapsed


def push(port: int, layout: ExperienceLayout, encodes: bool) -> None:
    """The sender's process, until it is ended."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = open_socket(context, zmq.PUSH, {zmq.SNDHWM: WINDOW})
    socket.connect(f"tcp://127.0.0.1:{port}")
    experience = make_experience(layout)
    frames = encode_experience(experience, layout, 1, 1)
    while True:
        socket.send_multipart(encode_experience(experience, layout, 1, 1) if encodes else frames, copy=False)


# --- the whole transport ------------------------------------------------------------------------------


def bus(layout: ExperienceLayout, seconds: float) -> float:
    """Env steps/s from the first chunk on."""
    steps, envs = layout.chunk_steps, layout.num_envs
    with bind_learner("tcp://127.0.0.1:0") as learner:
        learner.open(
            Terms(
                run_id=learner.run_id,
                epoch=learner.epoch,
                num_actors=1,
                num_envs=envs,
                num_steps=steps,
                chunk_steps=steps,
                max_lead_steps=steps * WINDOW,
                fill="columns",
                seed=0,
                observation_space=layout.observation_space,
                action_space=layout.action_space,
                policy={},
                manifest=(),
                heartbeat_interval=1.0,
                lease=30.0,
                rejoin_timeout=30.0,
            )
        )
        learner.publish(PolicyBroadcast(0, b""))
        actor = start(act, learner.join_string, layout)
        learner.receive({0}, 60.0)
        chunks, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            learner.receive({0}, 60.0)
            chunks += 1
            if chunks % (WINDOW // 4) == 0:
                learner.mark_consumed()
                learner.give_credit(0)
        elapsed = time.monotonic() - began
        actor.terminate()
        actor.join()
    return chunks * steps * envs / elapsed


def act(join: str, layout: ExperienceLayout) -> None:
    """The actor's process, until it is ended: one that needs no time to act."""
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        package="",
        role="actor",
        incarnation=1,
        num_envs=layout.num_envs,
        observation_space=layout.observation_space,
        action_space=layout.action_space,
    )
    experience, throttle = make_experience(layout), ActorThrottle(layout.chunk_steps * WINDOW)
    throttle.loaded(0)
    with connect_actor(join, hello) as actor:
        while True:
            throttle.credit(actor.credit.credited_chunks * layout.chunk_steps, 0)
            if not throttle.may_act():
                actor.wait(1.0)
                continue
            actor.send(experience)
            for _ in range(layout.chunk_steps):
                throttle.step()


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


if __name__ == "__main__":
    main()
