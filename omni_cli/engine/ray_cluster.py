"""A Ray cluster for replicas and ranks: an existing one, or one that is started here and ended after use."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil

from omni_cli.config.schema import ARStageConfig, StageConfig
from omni_cli.core.errors import OmniError
from omni_cli.core.files import scratch_folder, temporary_folder

# Read by Ray on import. Without them, its processes' output would go to stdout, where results belong.
_ENVIRONMENT = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
_STDERR = 2


class QuietRay:
    """Silences Ray on stdout, and on stderr unless `verbose`.

    Descriptor 2 is redirected to the null device until `end`, because Ray's C++ code writes there and has no setting
    for it. Python's stderr moves to another descriptor. Create this before anything keeps `sys.stderr`.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._kept: int | None = None
        self._stderr = sys.stderr
        os.environ.update(_ENVIRONMENT)
        if not verbose and _is_descriptor(sys.stderr):
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        sys.stderr.flush()
        self._kept = os.dup(_STDERR)
        os.set_inheritable(self._kept, False)
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        sys.stderr = open(self._kept, "w", buffering=1, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
        os.close(nowhere)

    def silence_loggers(self) -> None:
        """Silence the loggers as well, which are set up when Ray is imported."""
        if not self._verbose:
            logging.getLogger("ray").setLevel(logging.CRITICAL)
            # Set up repeatedly, so it gets a filter.
            logging.getLogger("ray.serve").addFilter(lambda record: False)

    def end(self) -> None:
        """Idempotent."""
        if self._kept is None:
            return
        sys.stderr.flush()
        sys.stderr = self._stderr
        os.dup2(self._kept, _STDERR)
        os.close(self._kept)
        self._kept = None


def _is_descriptor(stream: object) -> bool:
    """True if a stream writes to descriptor 2; one installed by a test may not."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == _STDERR
    except (OSError, ValueError):
        return False


# Appended by Ray to its folder: `/session_2026-11-20_19-08-08_333811_14299/sockets/plasma_store` and an index.
_SOCKET_ROOM = 80
# A worker's child processes end by themselves after the worker, one of them after a cleanup.
_SYSTEM_CONFIG = {"kill_child_processes_on_worker_exit": False, "process_group_cleanup_enabled": False}
_TOKEN = "RAY_AUTH_TOKEN"
_CONNECT_S = 10.0
_END_S = 10.0


class RayCluster:
    """`connect` joins the cluster that `RAY_ADDRESS` names, or starts one here; `close` leaves it as it was found."""

    def __init__(self, *, verbose: bool) -> None:
        self._folder: str | None = None
        self._kept = contextlib.ExitStack()
        self._has_begun = False
        self._address = os.environ.get("RAY_ADDRESS")
        self._quiet = QuietRay(verbose=verbose)
        # Ray's own handler of SIGTERM would replace this command's, and ends in an abort.
        os.environ["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = "1"
        # Otherwise a thread that calls Ray after its shutdown would start another one.
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
        if not self._address:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Other users of this machine can reach Ray's ports. Ray itself would store a token in the home folder.
            os.environ["RAY_AUTH_MODE"], os.environ[_TOKEN] = "token", secrets.token_hex(32)

    @property
    def scratch(self) -> str | None:
        """A folder to be created in a cluster that was started here, and removed with it; None for another cluster."""
        return None if self._folder is None else f"{self._folder}/t"

    def connect(self) -> None:
        """Connect, which takes seconds. Raises `OmniError`.

        Call this outside the main thread, where Ray leaves signals alone, and `close` in the same thread: in another
        one it takes a quarter of a minute.
        """
        import ray

        self._has_begun = True
        self._quiet.silence_loggers()
        settings: dict[str, object] = {"log_to_driver": False, "configure_logging": False, "job_config": _job()}
        try:
            if self._address:
                _check_reachable(self._address)
                ray.init(address=self._address, **settings)
            else:
                parent = temporary_folder(_SOCKET_ROOM)
                self._folder = str(self._kept.enter_context(scratch_folder("omni-ray-", parent)))
                settings |= {"_temp_dir": self._folder, "_system_config": _SYSTEM_CONFIG}
                ray.init("local", num_cpus=os.cpu_count(), include_dashboard=False, **settings)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self.close()
            where = f"no Ray cluster answers at `{self._address}`" if self._address else "Ray cannot be started here"
            reason = str(error).strip().partition("\n")[0]
            hint = (
                "without RAY_ADDRESS, Ray is started on this machine; a cluster that asks for a token needs "
                "RAY_AUTH_MODE=token"
            )
            raise OmniError(f"{where}: {reason}", hint=hint if self._address else None) from error

    def close(self) -> None:
        """End everything of this command on the cluster, and a cluster that was started here. Idempotent."""
        if self._has_begun:
            import ray

            ray.shutdown()
        if self._folder is not None:
            _end_all(os.environ[_TOKEN])
            self._kept.close()
            self._folder = None
        self._quiet.end()


@contextlib.contextmanager
def ray_for_ranks(stage: StageConfig) -> Iterator[None]:
    """Provide Ray as long as the stage needs it; does nothing for a stage that does not. Raises `OmniError`.

    vLLM uses a running Ray. One that it starts itself waits for a dashboard, is open to everyone on the machine, and
    leaves files and shared memory behind.
    """
    if not isinstance(stage, ARStageConfig) or stage.distributed_executor_backend != "ray":
        yield
        return
    # In the main thread, Ray would take over the signals.
    with ThreadPoolExecutor(1, thread_name_prefix="omni-ray") as thread:
        # Its messages go to the log of this process.
        cluster = RayCluster(verbose=True)
        thread.submit(cluster.connect).result()
        try:
            yield
        finally:
            thread.submit(cluster.close).result()


def _job() -> object:
    """Return the settings of a job whose workers do not import from this command's current folder."""
    from ray.job_config import JobConfig

    class RayJob(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            """Ray puts the driver's current folder first on the workers' module path, unless a job has a folder."""
            return True

    return RayJob()


def _end_all(token: str) -> None:
    """End what is left of a Ray that was shut down: at once, except processes that clean up after others."""
    deadline = time.monotonic() + _END_S
    while processes := [process for process in psutil.process_iter() if _has_token(process, token)]:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if not any("resource_tracker" in word for word in process.cmdline()) or time.monotonic() > deadline:
                    process.kill()
        psutil.wait_procs(processes, timeout=0.1)


def _has_token(process: psutil.Process, token: str) -> bool:
    """True if it was started, directly or indirectly, by the Ray of this token."""
    try:
        return process.pid != os.getpid() and bool(process.environ().get(_TOKEN) == token)
    except psutil.Error:
        return False  # ended, or another user's


def _check_reachable(address: str) -> None:
    """Raise `OSError` without a listener at HOST:PORT; Ray would keep trying for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
