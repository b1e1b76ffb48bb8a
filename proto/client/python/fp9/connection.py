"""A connection to fp9d."""
import fcntl
import array
import os
import select
import socket
import time

from .core import Core
from .errors import Disconnected, NoDaemon
from .session import Session

SOCKET_DEFAULT = "/run/fp9d/control.sock"
READ_BYTES = 65536
DESCRIPTORS_MAX = 253  # that the kernel passes at once


def connect(path=None, timeout=None):
    """Connects to the socket at `path`; None: the environment's FP9_SOCKET, else /run/fp9d/control.sock. `timeout`: see Connection.
    Raises NoDaemon when nobody listens there."""
    path = path or os.environ.get("FP9_SOCKET") or SOCKET_DEFAULT
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        one.connect(os.fspath(path))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        one.close()
        raise NoDaemon("NOT_READY", f"no fp9d at {path}: {error.strerror}") from error
    except OSError as error:
        one.close()
        raise Disconnected("INTERNAL", f"fp9d at {path} cannot be reached: {error}") from error
    return Connection(one, timeout)


def sealed(data):
    """A memfd with these bytes that nobody can change any more, as prepare takes it; os.close() it."""
    fd = os.memfd_create("fp9-weights-of-a-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(fd, left):]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _recv_fds(connected, flags):
    """(bytes, descriptors). socket.recv_fds() of Python 3.11 loses its flags on the way."""
    data, ancillary, _, _ = connected.recvmsg(READ_BYTES, socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize), flags)
    fds = array.array("i")
    for level, kind, part in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(part[:len(part) - len(part) % fds.itemsize])
    return data, fds.tolist()


def _given(params):
    return {key: value for key, value in params.items() if value is not None}


class Connection:
    """A connection with its calls; close() it or use it in `with`. Its sessions end with it.

    timeout          seconds that a waiting call waits for its answer; None: without limit. When they are over it raises TimeoutError; the
                     call stays under way, wait() may be called for it again.
    on_notification  None or a function (method, params) for each notification (job.progress, event) that arrives while any method of
                     this object reads. It must not call anything on this connection.

    Methods of the protocol are Python methods with _ for the dot, optional parameters are keywords (None: left out), and the results are
    the dicts of fp9-control(7); call() calls any method by name. A connection belongs to one thread at a time; different connections
    are independent.
    """

    def __init__(self, connected, timeout=None):
        """Takes over a connected stream socket."""
        self.timeout = timeout
        self.socket, self.core = connected, Core()
        self.socket.setblocking(True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def on_notification(self):
        return self.core.on_notification

    @on_notification.setter
    def on_notification(self, function):
        self.core.on_notification = function

    def fileno(self):
        """For select and poll: readable when process() has something to take."""
        return self.socket.fileno()

    def close(self):
        self.socket.close()
        self.core.close()

    # ---- calls, waiting or not

    def call(self, method, /, **params):
        """Calls any method and waits for its answer, which it returns; params are sent as they are."""
        return self.wait(self.request(method, **params))

    def request(self, method, /, **params):
        """Queues a call without waiting and sends as much of it as the socket takes; gives its id for wait(). Up to 64 calls may be
        under way."""
        number = self.core.request(method, params)
        self._send()
        return number

    def request_fds(self, method, fds, /, **params):
        """request() with descriptors, which travel with the request's first byte and stay the caller's: prepare(memory=True) takes a sealed
        memfd so."""
        while not self._send():
            poll = select.poll()
            poll.register(self.socket, select.POLLOUT)
            poll.poll()
        number = self.core.request(method, params)
        if fds:
            part = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                self.core.sent(self.socket.sendmsg([self.core.output()], part, socket.MSG_NOSIGNAL))
            except OSError as error:
                self.core.fail(Disconnected("INTERNAL", f"cannot send to fp9d: {error}"))
        self._send()
        return number

    def wait(self, number, timeout=None):
        """The result of a call of request(); raises its error. `timeout` in place of the connection's."""
        result, fd = self.wait_fd(number, timeout)
        for one in (fd, self.core.doorbell(number)):
            if one is not None:
                os.close(one)
        return result

    def wait_fd(self, number, timeout=None):
        """wait() that gives (result, descriptor): of a session.open the arena's, which is the caller's to close; else None."""
        seconds = self.timeout if timeout is None else timeout
        end = None if seconds is None else time.monotonic() + seconds
        while self.core.waiting(number):
            left = None if end is None else max(0, end - time.monotonic())
            try:
                happened = self.process(left)
            except Disconnected:
                continue  # which answers every call
            if not happened and left == 0:
                raise TimeoutError(f"call {number} was not answered in {seconds} s")
        return self.core.answer(number)

    def process(self, timeout=0):
        """Sends what is queued, waits up to `timeout` seconds (None: without limit) for something to happen, and takes what has arrived;
        True when something has. Answers are then told by core.next_answer() and taken by wait()."""
        if not self._send() or timeout is not None:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN | (select.POLLOUT if self.core.output() else 0))
            if not poll.poll(None if timeout is None else timeout * 1000):
                return False
        return self._receive()

    def _send(self):
        """True when nothing is left to be sent."""
        while data := self.core.output():
            try:
                self.core.sent(self.socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))
            except BlockingIOError:
                return False
            except BrokenPipeError:
                self.core.sent(len(data))  # why it was closed may still be there to read
            except OSError as error:
                self.core.fail(Disconnected("INTERNAL", f"cannot send to fp9d: {error}"))
        return True

    def _receive(self):
        # All is sent and there may be no limit to the waiting: then this is where it waits.
        flags = socket.MSG_CMSG_CLOEXEC | (socket.MSG_DONTWAIT if self.core.output() else 0)
        try:
            data, fds = _recv_fds(self.socket, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            self.core.fail(Disconnected("INTERNAL", f"cannot read from fp9d: {error}"))
        self.core.input(data, fds)
        return True

    # ---- the daemon

    def status(self):
        """state, version, uptime_s, ducks, models, sessions (count), jobs (count)"""
        return self.call("status")

    def metrics(self):
        """What is counted: steps with their timing words by session, layer and duck, errors, loads, losses."""
        return self.call("metrics")

    def metrics_text(self):
        """The same as text in Prometheus' exposition format."""
        return self.call("metrics", format="prometheus")["text"]

    def events_subscribe(self):
        """From now on fp9d tells this connection's on_notification "event" {time, kind, duck?, model?, job?, message}."""
        return self.call("events.subscribe")

    def plan(self, path, **more):
        """How a checkpoint would be spread: tp=, multiple_of=, strategy=, mtp=, ducks=, memory= (bytes). Only its config.json is read.
        The prediction's rates: read_rate=, link_rate= (bytes/s), mparam_rate= (million weights/s), step_us=, host_us=."""
        return self.call("plan", path=os.path.abspath(path), **_given(more))

    # ---- models

    def model_list(self):
        return self.call("model.list")["models"]

    def model_load(self, path, wait=True, progress=None, **more):
        """Loads the checkpoint in directory `path` (relative paths are this process's): name=, tp=, multiple_of=, strategy=, force=, mtp=.
        Gives load's keys (model, model_key, cache, reason, bytes_read, ...) when the model is ready; with wait=False the job's id at once.
        `progress` is called with {job, phase, done_bytes, total_bytes, rate, eta_s} as fp9d tells it. (administration)"""
        return self._job("model.load", wait, progress, path=os.path.abspath(path), **_given(more))

    def model_unload(self, model, drop_cache=None):
        """Takes a model out of service; drop_cache=True frees its slots too. (administration)"""
        return self.call("model.unload", model=model, **_given({"drop_cache": drop_cache}))

    def prepare(self, model, layer=None, wait=True, progress=None, memory=None, **more):
        """Prepares the slots that are missing, of one layer or of all; wait and progress as model_load(). (administration)

        memory is bytes in the form of a safetensors file, or a sealed memfd of such: weights come from there and not from the
        checkpoint. A new model needs path=, the directory of its config.json; tp=, multiple_of=, strategy= as model_load()."""
        given = _given({"layer": layer, **more})
        if "path" in given:
            given["path"] = os.path.abspath(given["path"])
        if memory is None:
            return self._job("prepare", wait, progress, model=model, **given)
        fd = memory if isinstance(memory, int) else sealed(memory)
        try:
            return self._job("prepare", wait, progress, fd=fd, model=model, memory=True, **given)
        finally:
            if fd is not memory:
                os.close(fd)

    # ---- jobs

    def job_list(self):
        return self.call("job.list")["jobs"]

    def job_wait(self, job, progress=None, timeout=None):
        """Waits until a job is done and gives the keys of its kind; raises its failure. progress as model_load()."""
        with self._watched(progress) as watch:
            watch.follow(job)
            return self.wait(self.request("job.wait", job=job), timeout)

    def job_cancel(self, job):
        return self.call("job.cancel", job=job)

    def call_fd(self, method, fd, /, **params):
        """call() with a descriptor beside the request's first byte; it stays the caller's."""
        while not self._send():
            self.process(None)
        number = self.core.request(method, params)
        self.core.sent(socket.send_fds(self.socket, [self.core.output()], [fd], socket.MSG_NOSIGNAL))
        return self.wait(number)

    def _job(self, method, wait, progress, fd=None, **params):
        with self._watched(progress) as watch:
            job = (self.call(method, **params) if fd is None else self.call_fd(method, fd, **params))["job"]
            if not wait:
                return job
            watch.follow(job)
            return self.call("job.wait", job=job)

    def _watched(self, progress):
        return _Watch(self, progress)

    # ---- the cache and the fleet

    def cache_list(self):
        """slots, and why others are gone"""
        return self.call("cache.list")

    def cache_invalidate(self, model=None, duck=None, all=None):
        """Forgets slots: of a model, on a duck, of a model on a duck, or all=True. (administration)"""
        return self.call("cache.invalidate", **_given({"model": model, "duck": duck, "all": all}))

    def cache_verify(self, model=None, full=None):
        """Computes the checksums of slots again."""
        return self.call("cache.verify", **_given({"model": model, "full": full}))

    def duck_list(self):
        return self.call("duck.list")["ducks"]

    def duck_add(self, name, address, **more):
        """address "HOST:PORT"; key_file=, spare=. (administration)"""
        return self.call("duck.add", name=name, address=address, **_given(more))

    def duck_remove(self, duck):
        return self.call("duck.remove", duck=duck)

    def duck_drain(self, duck):
        return self.call("duck.drain", duck=duck)

    # ---- sessions

    def step_cancel(self, session, request):
        """Ends the step in flight that the decode or prefill request of this id asked for; Step.cancel() does it for its own."""
        return self.call("step.cancel", session=session, request=request)

    def session_list(self):
        return self.call("session.list")["sessions"]

    def session_open(self, model, max_tokens, **more):
        """Opens a session for steps of up to max_tokens tokens (1 to 4096): partials= and output_dtype= "bf16" or "f32", one_shot=,
        priority= "interactive" or "batch", lanes= (steps under way at once, 1 to 8), ring=True (steps go through shared memory; x86-64).
        Gives a Session."""
        return Session(self, model, max_tokens, **_given(more))


class _Watch:
    """While it lasts, job.progress of one job goes to a function too; what came before the job's id was known is told afterwards."""

    def __init__(self, connection, progress):
        self.connection, self.progress, self.job, self.early = connection, progress, None, []

    def __enter__(self):
        self.before = self.connection.on_notification
        if self.progress:
            self.connection.on_notification = self.told
        return self

    def __exit__(self, *_):
        self.connection.on_notification = self.before

    def told(self, method, params):
        if method == "job.progress":
            if self.job is None:
                self.early.append(params)
            elif params.get("job") == self.job:
                self.progress(params)
        if self.before:
            self.before(method, params)

    def follow(self, job):
        self.job = job
        for params in self.early:
            if params.get("job") == job:
                self.progress(params)
