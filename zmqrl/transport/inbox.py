"""The actor's front half, the same for every transport: what was heard, what was sent, and what became of it.

The actor's loop takes policies and hands over chunks; whoever moves the messages (an I/O thread, or the learner's bus
itself where there is no socket) hands in what was heard, through the methods `hear_...`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from types import TracebackType
from typing import Self

from zmqrl.accounts import ActorActivity, ActorStats, Settlement
from zmqrl.codec import ExperienceLayout, encode_experience
from zmqrl.errors import NoLearner, Refused, ZmqrlError
from zmqrl.messages import Experience, PolicyBroadcast, Shutdown
from zmqrl.session import Credit, Hello, Refuse, Rejected, Welcome
from zmqrl.transport.sequence import SendWindow, SentChunk


class Inbox(ABC):
    """Base of the actor's buses; `zmqrl.transport.bus.ActorBus` documents what the loop calls.

    Once Shutdown was heard nothing is an error any more: the loop is about to end, whatever becomes of the learner.

    A new session takes effect for the loop when it has read `session`: until then policies of the new epoch are held
    back, and chunks, which were begun before it, are counted as `stale_epoch`. So no chunk mixes two epochs.
    """

    def __init__(self, hello: Hello) -> None:
        self.activity = ActorActivity()
        self._hello = hello
        self._changed = threading.Condition()
        self._news = False
        self._welcome: Welcome | None = None
        self._layout: ExperienceLayout | None = None
        self._session = 0
        self._session_read = 1
        self._policy: PolicyBroadcast | None = None
        self._taken_version = -1
        self._credit = Credit(0, hello.incarnation, 0, 0, -1, 0, 0)
        self._refused: Refuse | None = None
        self._shutdown: Shutdown | None = None
        self._run_is_over = False
        self._failure: ZmqrlError | None = None
        self._window = SendWindow()
        self._leaving = False
        # of sessions that are over
        self._past_received = 0
        self._past_chunks = 0
        self._lost: Counter[str] = Counter()

    # --- the actor's loop --------------------------------------------------------------------------------

    @property
    def welcome(self) -> Welcome:
        """Slot, seed and terms of the current session."""
        with self._changed:
            if self._welcome is None:
                raise self._failure or NoLearner("this actor has not joined")
            return self._welcome

    @property
    def session(self) -> int:
        """Grows when all counting starts from 0; reading it is what makes the new session take effect."""
        with self._changed:
            self._session_read = self._session
            return self._session

    @property
    def credit(self) -> Credit:
        """The newest credit of this session; zeros before the first."""
        with self._changed:
            return self._credit

    @property
    def shutdown(self) -> Shutdown | None:
        """The Shutdown that was heard, if any."""
        return self._shutdown

    def take_policy(self) -> PolicyBroadcast | None:
        """The newest policy, if it is newer than the one taken before."""
        with self._changed:
            policy = self._policy
            current = self._session_read == self._session
            if policy is None or not current or policy.version <= self._taken_version:
                return None
            self._taken_version = policy.version
            return policy

    def wait(self, timeout: float) -> None:
        """Return when something came since the last call, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._news, timeout)
            self._news = False
            self._raise_failure()

    def send(self, experience: Experience) -> None:
        """Hand over a full chunk; never blocks."""
        with self._changed:
            self._raise_failure()
            chunk, session, gone = self._pack(experience), self._session, self._is_gone()
        if chunk is not None and not gone:
            self._transmit(chunk, session)

    def _raise_failure(self) -> None:
        if self._failure is not None and self._shutdown is None:
            raise self._failure

    def _is_gone(self) -> bool:
        """The learner answers no more."""
        return self._failure is not None or self._run_is_over

    def _pack(self, experience: Experience) -> SentChunk | None:
        env_steps = experience.env_steps
        if self._session_read != self._session or self._welcome is None or self._layout is None:
            self._lost["stale_epoch"] += env_steps
            return None
        numbered = replace(experience, agent_id=self._welcome.slot, seq=self._window.next_seq)
        frames = encode_experience(numbered, self._layout, self._welcome.terms.epoch, self._hello.incarnation)
        return self._window.add(frames, env_steps)

    def settle(self, timeout: float) -> Settlement:
        """Wait until everything sent has been received, at most `timeout` seconds, and give the account."""
        self._leaving = True
        self._leave()
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout)
            return self._settlement()

    def _is_settled(self) -> bool:
        return self._credit.received_seq >= self._window.next_seq or self._is_gone()

    def _settlement(self) -> Settlement:
        received, lost = self._balance()
        total = self._lost + Counter(lost)
        return Settlement(
            steps_received=self._past_received + received,
            steps_lost={name: steps for name, steps in sorted(total.items()) if steps},
            chunks_sent=self._past_chunks + self._window.next_seq,
        )

    def _balance(self) -> tuple[int, dict[str, int]]:
        """Of the current session: env steps received, and those lost by what became of them."""
        window, credit = self._window, self._credit
        answered = window.steps_before(min(credit.received_seq, window.next_seq))
        received = min(credit.received_steps, answered)
        return received, {"cut": answered - received, "unacknowledged": window.env_steps - answered}

    # --- to be given by each transport -------------------------------------------------------------------

    @abstractmethod
    def _transmit(self, chunk: SentChunk, session: int) -> None:
        """Send a chunk of this session for the first time."""

    @abstractmethod
    def _leave(self) -> None:
        """Nothing new will be sent: find out soon what has been received."""

    @abstractmethod
    def goodbye(self, stats: ActorStats, reason: str = "") -> None:
        """Leave for good."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads and sockets."""

    # --- joining -----------------------------------------------------------------------------------------

    def wait_for_answer(self, timeout: float) -> bool:
        """Whether the learner answered the first Hello; raises Refused if the answer is no."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._welcome or self._refused or self._failure), max(0.0, timeout))
            if self._refused is not None:
                raise Refused(self._refused.code, self._refused.text)
            if self._failure is not None:
                raise self._failure
            return self._welcome is not None

    def _hello_now(self) -> Hello:
        """What to say to join; with the slot it had, if this is not the first time."""
        with self._changed:
            return self._hello if self._welcome is None else replace(self._hello, held_slot=self._welcome.slot)

    # --- what was heard ----------------------------------------------------------------------------------

    def hear_refuse(self, refuse: Refuse) -> None:
        """The answer to the first Hello. To a later one it is the end: of the run, or of this actor's part in it."""
        with self._changed:
            if self._welcome is None:
                self._refused = refuse
            elif refuse.code == "finished":
                self._run_is_over = True
                self.hear_shutdown(Shutdown(refuse.text))
            else:
                self.fail(Refused(refuse.code, refuse.text))
            self._tell()

    def hear_welcome(self, welcome: Welcome) -> bool:
        """Whether it begins a new session. The seed is of one stay in a slot, so it tells one from the other."""
        terms = welcome.terms
        with self._changed:
            old, self._welcome = self._welcome, welcome
            if old is not None and _identity(old) == _identity(welcome):
                return False
            received, lost = self._balance()
            self._past_received += received
            self._past_chunks += self._window.next_seq
            self._lost["cut"] += lost["cut"]
            self._lost["stale_epoch"] += lost["unacknowledged"]
            self._window = SendWindow()
            self._layout = ExperienceLayout.of(terms)
            self._credit = Credit(terms.epoch, self._hello.incarnation, 0, 0, -1, 0, 0)
            self._policy, self._taken_version = None, -1
            self._session += 1
            self._tell()
            return True

    def hear_policy(self, broadcast: PolicyBroadcast) -> None:
        """Keep the newest of this epoch."""
        with self._changed:
            newest = self._policy.version if self._policy else -1
            if self._welcome is None or broadcast.epoch != self._welcome.terms.epoch or broadcast.version <= newest:
                return
            self._policy = broadcast
            self._tell()

    def hear_credit(self, credit: Credit) -> None:
        """Keep the newest; after a broken link an older one may come later."""
        with self._changed:
            old = self._credit
            foreign = (credit.epoch, credit.incarnation) != (old.epoch, old.incarnation)
            if foreign or _progress(credit) < _progress(old) or credit == old:
                return
            self._credit = credit
            self._window.release(min(credit.consumed_seq, credit.received_seq))
            self._tell()

    def hear_rejected(self, rejected: Rejected) -> None:
        """One of the chunks is done with: it need not be kept, also while others before it are waited for."""
        if rejected.ends_chunk:
            with self._changed:
                self._window.drop(rejected.seq)

    def hear_shutdown(self, shutdown: Shutdown) -> None:
        """It never goes away again."""
        with self._changed:
            if self._shutdown is None:
                self._shutdown = shutdown
                self._tell()

    def fail(self, error: ZmqrlError) -> None:
        """From now on the loop gets this error."""
        with self._changed:
            self._failure = self._failure or error
            self._tell()

    def _tell(self) -> None:
        self._news = True
        self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _identity(welcome: Welcome) -> tuple[str, int, int, int]:
    return welcome.terms.run_id, welcome.terms.epoch, welcome.slot, welcome.seed


def _progress(credit: Credit) -> tuple[int, int, int, int]:
    return credit.received_seq, credit.consumed_seq, credit.credited_chunks, credit.version
