"""The composition root: makes every part, wires them, starts them, and stops them in order."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import math
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_reflection.v1alpha import reflection

from gradserve.messages import HEALTH_SERVICE, SERVICE
from gradserve_server.calls import Calls
from gradserve_server.checking.checker import Checker
from gradserve_server.checking.gradient_check import START_OPTIONS
from gradserve_server.checking.rows import with_layout
from gradserve_server.config import Settings
from gradserve_server.evaluation import Evaluator
from gradserve_server.health import Health
from gradserve_server.interceptors.calls import ObservingServer
from gradserve_server.logs import AccessLog, Logger
from gradserve_server.metrics import Metrics, new_registry
from gradserve_server.ops import Op, OpLoadError
from gradserve_server.plans import Plans
from gradserve_server.registry import Registry
from gradserve_server.rows import Limits
from gradserve_server.scheduling.work import OWN_LOAD, Bounds, Load, Work
from gradserve_server.service import GradientService, Parts, handlers_of
from gradserve_server.threads import in_daemon_thread
from gradserve_server.warmup import cause_of, warm_up, with_facts

if TYPE_CHECKING:  # at run time these would import TensorFlow too early
    from gradserve_server.loading import Failures
    from gradserve_server.scheduling.device import Device

LOAD_THREAD = "load"
"""Name of the thread that loads ops."""
_ENVELOPE_BYTES = 2**20
"""What a response may have beside its tensors, whose size is checked before it is encoded: names, shapes, a fingerprint."""
_QUIET_SECONDS = 0.2
"""How long no call must have begun before the server stops."""
_LAST_RESPONSES_SECONDS = 0.5
"""How long responses that are made may take to leave once the server stops."""


class App:
    """One server: ``start`` opens the port and loads the ops, ``stop`` lets calls finish and closes everything."""

    def __init__(self, settings: Settings, logger: Logger) -> None:
        """Makes the parts; nothing is opened or loaded yet."""
        self._settings = settings
        self._logger = logger
        self._service = GradientService(
            settings.max_message_bytes, 1 if settings.deterministic else settings.max_batch_calls
        )
        self._health = Health()
        self._metrics = Metrics(new_registry())
        self._calls = Calls(
            [self._metrics, AccessLog(logger)], clock=time.perf_counter, max_call_seconds=settings.max_call_seconds
        )
        self._devices: dict[str, Device] = {}
        self._stop_metrics: Callable[[], None] = lambda: None
        self._server: grpc.aio.Server | None = None
        self.port = 0
        """Port that the server listens on, once it has started."""
        self.metrics_port = 0
        """Port of ``/metrics``, once it has started."""

    async def start(self) -> None:
        """Opens the ports, then loads and warms up the ops; health is NOT_SERVING until that is done.

        Raises:
            OSError: A port cannot be opened.
            ValueError: A setting names a device that is not there.
            OpLoadError: A module, model or op cannot be loaded.
        """
        settings = self._settings
        self._serve_metrics(settings.metrics_host, settings.metrics_port)
        self._server = await self._open(settings)
        self._logger.info("listening", host=settings.host, port=self.port, metrics_port=self.metrics_port)
        failures, loaded = await in_daemon_thread(self._load, name=LOAD_THREAD)
        registry = await self._warm_up(loaded, failures)
        for failure in failures.skipped:
            self._logger.error("op skipped", source=failure.source, op=failure.name, error=str(failure))
        if failures.skipped and not registry.infos():  # whole modules failed, and there is nothing to serve or to list
            raise failures.skipped[0]
        limits = Limits(max_rows=settings.max_rows, max_response_bytes=settings.max_message_bytes)
        checker = Checker(self._submit)
        registry = await self._check_gradients(registry, checker, failures)
        self._service.parts = Parts(
            registry=registry, evaluator=Evaluator(registry, self._submit, limits), checker=checker, plans=Plans()
        )
        self._metrics.set_ready(True)
        await self._health.set_serving(True)
        names = {f"{info.name}:{info.version}": info.failure for info in registry.infos()}
        failed = [name for name, failure in names.items() if failure]
        self._logger.info("ready", ops=[name for name in names if name not in failed], failed=failed)

    def _serve_metrics(self, host: str, port: int) -> None:
        try:
            self.metrics_port, self._stop_metrics = self._metrics.serve(host, port)
        except OSError as error:
            raise OSError(f"cannot serve /metrics on {host}:{port}: {error.strerror or error}") from error

    async def _open(self, settings: Settings) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.max_send_message_length", settings.max_message_bytes + _ENVELOPE_BYTES),
                ("grpc.so_reuseport", 0),  # two servers on one port would share its calls without a word
            ],
        )
        observing = cast("grpc.aio.Server", ObservingServer(server, self._calls))  # to those who register handlers
        observing.add_generic_rpc_handlers((handlers_of(self._service, self._calls),))
        await self._health.register(observing)
        if settings.reflection:
            reflection.enable_server_reflection((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host  # IPv6
        try:
            _try_to_bind(settings.host, settings.port)
            self.port = server.add_insecure_port(f"{host}:{settings.port}")
        except (OSError, RuntimeError) as error:
            raise OSError(f"cannot listen on {host}:{settings.port}: {getattr(error, 'strerror', error)}") from error
        await server.start()
        return server

    def _load(self) -> tuple["Failures", Registry]:
        """Imports TensorFlow, loads modules and models and traces their ops; runs beside the event loop, so health answers."""
        # Imported here, since TensorFlow takes seconds: the port answers health checks meanwhile.
        from gradserve_server.loading import Failures, Sources, build_registry, find_ops  # noqa: PLC0415
        from gradserve_server.scheduling import device  # noqa: PLC0415

        settings = self._settings
        failures = Failures(skip=settings.bad_ops == "skip")
        device.configure_gpus(memory_limit_bytes=settings.gpu_memory_limit_bytes)  # before a module makes a variable
        definitions = find_ops(Sources.of(settings), failures)
        default = device.resolve(settings.device)
        registry = build_registry(
            definitions,
            lambda wanted: default if wanted is None else device.resolve(wanted),
            failures,
            max_compiled_shapes=settings.max_compiled_shapes,
        )
        bounds = Bounds(
            max_requests=settings.max_queue_requests,
            max_bytes=settings.max_queue_bytes,
            max_joined=1 if settings.deterministic else settings.max_batch_calls,
            max_wait_seconds=settings.max_batch_wait_microseconds * 1e-6,
        )
        of_cpu = dataclasses.replace(
            bounds,
            light_seconds=settings.light_call_microseconds * 1e-6,
            slow_seconds=settings.slow_call_milliseconds * 1e-3 or math.inf,
        )
        for name in {info.device for info in registry.infos() if info.device}:
            self._devices[name] = device.Device(name, time.perf_counter, of_cpu if name.startswith("cpu:") else bounds)
        return failures, registry

    async def _warm_up(self, registry: Registry, failures: "Failures") -> Registry:
        """Runs each op once; returns the registry without those that failed on an example of their author's.

        Raises:
            OpLoadError: An op failed on an example of its author's, and failures are not skipped.
        """
        ops = [await self._try(op, failures) for op in registry.ops()]
        return Registry(ops, failures.skipped)

    async def _try(self, op: Op, failures: "Failures") -> Op:
        """Runs an op once, and returns it with what was found out."""
        if op.stateful:  # a run would change what the first caller finds
            return op
        try:
            await self._submit(op.device, functools.partial(warm_up, op), OWN_LOAD).future
            op = await self._submit(op.device, functools.partial(with_facts, op), OWN_LOAD).future
            op = await self._submit(op.device, functools.partial(with_layout, op), OWN_LOAD).future
        except OpLoadError as error:
            failures.add(error)
        except Exception as error:  # drawn inputs need not be valid for every op: Cholesky of ones, say
            self._logger.warning("warm-up failed", op=op.name, error=cause_of(error))
        return op

    async def _check_gradients(self, registry: Registry, checker: Checker, failures: "Failures") -> Registry:
        """Checks the gradients of the ops that claim exact ones; returns the registry without those that are wrong.

        Raises:
            OpLoadError: A gradient is not the derivative (WRONG_GRADIENT), the setting is to refuse that, and failures are
                not skipped.
        """
        setting = self._settings.check_gradients
        claimed = [op for op in registry.ops() if op.gradient == "exact" and not op.no_vjp]
        for op in claimed if setting != "off" else ():
            if op.stateful or not op.repeatable:
                continue
            self._logger.debug("checking gradient", op=op.name, signature=op.signature.key)
            try:
                found = await checker.check(op, None, START_OPTIONS)
            except Exception as error:  # a check is no reason to stop a server that could serve
                self._logger.warning("gradient check failed", op=op.name, error=cause_of(error))
                continue
            if found.verdict == "fail" and setting == "refuse":
                text = f"{found.text}; mend the rule, or declare what it is: gradient='surrogate'"
                failures.add(op.failure(text, "WRONG_GRADIENT"))
            elif found.verdict != "pass":
                self._logger.warning(
                    "gradient " + found.verdict, op=op.name, signature=op.signature.key, text=found.text
                )
        return Registry(registry.ops(), failures.skipped)

    def _submit(self, device: str, function: Callable[[], Any], load: Load) -> Work:
        return self._devices[device].submit(function, load)

    async def stop(self) -> None:
        """Refuses new calls, lets those under way finish within the grace period, and closes everything."""
        self._metrics.set_ready(False)
        await self._health.stop()
        if self._server is not None:
            await self._drain(self._server)
        for device in self._devices.values():
            await asyncio.to_thread(device.close, _LAST_RESPONSES_SECONDS)
        await asyncio.to_thread(self._stop_metrics)

    async def _drain(self, server: grpc.aio.Server) -> None:
        """Stops a server once no call is under way. Until then the port answers: health, and UNAVAILABLE to new calls.

        gRPC's own grace period would close the port first, and wait for those who watch the health, who never end.
        """
        self._service.is_draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._calls.wait_until_idle(_QUIET_SECONDS), self._settings.grace_seconds)
        await server.stop(min(_LAST_RESPONSES_SECONDS, self._settings.grace_seconds))


def _try_to_bind(host: str, port: int) -> None:
    """Binds an address and lets it go. gRPC would not say why it cannot, and print lines of its own beside ours.

    Raises:
        OSError: The address cannot be bound.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


async def serve(settings: Settings, logger: Logger) -> None:
    """Runs a server until SIGTERM or SIGINT; raises as ``App.start`` does."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    app = App(settings, logger)
    starting = asyncio.ensure_future(app.start())
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            gc.collect()
            gc.freeze()  # what is there now stays: TensorFlow's many objects need not be looked at again and again
            await waiting
        logger.info("stopping")
    finally:
        starting.cancel()
        waiting.cancel()
        await app.stop()
    logger.info("stopped")
