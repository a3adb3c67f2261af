"""The coordinator's end of a runner: commands out, answers in, each with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prism.files import write_json
from prism.measure import children


class Failure(Exception):
    """The child cannot go on; `status` and the message go into its row.

    `cause` is "hang", "memory" or "crash", as of a candidate, or "astray" when what came is no
    answer to the command: a system before may have left a process that answers too.
    """

    def __init__(self, reason: str, status: str = "failed", cause: str = "crash"):
        super().__init__(reason)
        self.status, self.cause = status, cause


class Worker:
    """A runner process. Every method raises Failure, after which the process is gone."""

    def __init__(self, job: dict, work: Path, name: str, threads: int, env: dict[str, str]):
        path = work / f"runner-{name}.json"
        write_json(path, job)
        self._stderr = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 - closed in close
        self._buffer = b""
        self._sent = self._answered = 0  # commands are numbered, and answers bear their numbers
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prism.measure.runner", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=children.environment_for_child(threads, env),
            start_new_session=True,
        )

    def ask(self, command: dict, timeout: float) -> dict:
        """Sends a command and waits for its answer."""
        self.send(command)
        return self.answer(command, timeout)

    def send(self, command: dict) -> None:
        """Sends a command; `answer` waits for what it gives."""
        self._sent += 1
        try:
            line = json.dumps({**command, "number": self._sent})
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended(_what(command)) from None

    def answer(self, command: dict, timeout: float) -> dict:
        """The answer to a command that was sent."""
        answer = self._answer(_what(command), timeout)
        self._answered += 1
        if not isinstance(answer, dict) or answer.pop("number", None) != self._answered:
            self.close()
            reason = f"answered more or other than it was asked (during {_what(command)})"
            raise Failure(reason, cause="astray")
        for status in ("failed", "unavailable"):
            if status in answer:
                self.close()
                raise Failure(answer[status], status)
        return answer

    def _answer(self, what: str, timeout: float) -> object:
        end = time.monotonic() + timeout
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self.close()
                raise Failure(f"hung: no answer to {what} within {timeout:g} s", cause="hang")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self._ended(what)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            return None

    def _ended(self, what: str) -> Failure:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.close()
            return Failure(f"closed its output (during {what})")
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace")
        self.close()
        reason = children.describe(code, text) or "ended"
        cause = "memory" if children.out_of_memory(text) else "crash"
        return Failure(f"{reason} (during {what})", cause=cause)

    def close(self) -> None:
        """Ends the process and all it started."""
        children.kill_group(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(OSError):
                stream.close()


def _what(command: dict) -> str:
    """A command in words."""
    return command["do"] if command["do"] != "turn" else f"a {command['state']} turn"
