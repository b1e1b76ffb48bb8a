"""The protocol without I/O: bytes in, bytes out, calls that wait for their answers. For event loops of any kind; Connection puts a socket
around it."""
import collections
import json
import os

from .errors import Disconnected, Error, from_object

LINE_MAX = 1 << 20  # bytes of one line either way, newline counted
CALLS_MAX = 64  # calls of a connection that may be under way
FDS_MAX = 8  # descriptors that arrived and wait for their answer; more are closed


def _object(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key given twice")
    return found


def _no_number(word):
    raise ValueError(f"{word} is no JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class _Call:
    __slots__ = ("wants_fd", "forgotten", "result", "error", "fd", "doorbell")

    def __init__(self, wants_fd):
        self.wants_fd, self.forgotten, self.result, self.error, self.fd, self.doorbell = wants_fd, False, None, None, None, None


class Core:
    """request() queues a call; send what output() shows and say sent(); give what arrives to input(); take answers by answer().

    on_notification  None or a function (method, params) that is called within input() for each notification. It must not call
                     anything on this connection.
    Belongs to one thread at a time.
    """

    def __init__(self):
        self.on_notification = None
        self._in, self._scanned, self._out = bytearray(), 0, bytearray()
        self._last_id, self._calls, self._answered = 0, {}, collections.OrderedDict()
        self._fds, self._broken = collections.deque(), None
        self._doorbells = {}  # call -> descriptor, of session.open calls that were answered
        self.rings = []  # of open sessions: ring.Ring

    def request(self, method, params=None):
        """Queues a call; gives its id. BUSY while CALLS_MAX calls are unanswered or their answers were not taken."""
        if self._broken:
            raise self._broken.with_traceback(None)
        if len(self._calls) >= CALLS_MAX:
            raise Error("BUSY", f"{CALLS_MAX} calls are waiting for their answers already")
        number = self._last_id + 1
        try:
            line = _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise Error("BAD_REQUEST", f"the params of {method} are no JSON: {error}") from error
        if len(line) > LINE_MAX:
            raise Error("BAD_REQUEST", f"the request has {len(line)} bytes, a line holds {LINE_MAX}")
        self._last_id = number
        self._calls[number] = _Call(method == "session.open")
        self._out += line
        return number

    def local(self):
        """A call that travels another way; complete() answers it."""
        if self._broken:
            raise self._broken.with_traceback(None)
        if len(self._calls) >= CALLS_MAX:
            raise Error("BUSY", f"{CALLS_MAX} calls are waiting for their answers already")
        self._last_id += 1
        self._calls[self._last_id] = _Call(False)
        return self._last_id

    def complete(self, number, result, error):
        call = self._calls.get(number)
        if call is None or number in self._answered:
            return
        call.result, call.error = None if error is not None else (result,), error
        self._answered[number] = None
        if call.forgotten:
            self.forget(number)

    def drop(self, number):
        """The call was never made, or nobody will answer it."""
        self._calls.pop(number, None)
        self._answered.pop(number, None)

    def doorbell(self, number):
        """The descriptor of the ring that came with the answer to a session.open, which is the caller's then; None: there is none."""
        return self._doorbells.pop(number, None)

    def output(self):
        """The bytes to be sent."""
        return bytes(self._out)

    def sent(self, count):
        """The first `count` bytes of output() are gone."""
        del self._out[:count]

    def input(self, data, fds=()):
        """Takes bytes that arrived, cut anywhere, with the descriptors that came with them (theirs from now on). b"" is the end of file.
        A failure is final: Disconnected now, and for every call that was not answered."""
        wanted = self._fd_wanted()
        for fd in fds:
            if wanted and len(self._fds) < FDS_MAX:
                self._fds.append(fd)
            else:
                os.close(fd)
        try:
            self._take(data)
        except Disconnected as error:
            self.fail(error)
        finally:
            if not self._fd_wanted():
                self._close_fds()

    def fail(self, error):
        """The connection is broken for this reason: raises it, now and for all calls that are left."""
        self._broken = self._broken or error
        for number, call in list(self._calls.items()):
            if call.forgotten:
                del self._calls[number]
            else:
                self._answered.setdefault(number)
        raise self._broken.with_traceback(None)

    def answered(self, number):
        """True when answer(number) has something to say."""
        return number in self._answered

    def waiting(self, number):
        """True while there is a call of that number whose answer has not come."""
        for ring in self.rings:
            ring.collect()
        return number in self._calls and number not in self._answered and not self._calls[number].forgotten

    def next_answer(self):
        """The call that was answered first among those whose answers were not taken; None when there is none."""
        for ring in self.rings:
            ring.collect()
        return next(iter(self._answered), None)

    def answer(self, number):
        """(result, descriptor or None) of a call that was answered, which is then over; raises its error. BlockingIOError when there is
        no answer yet."""
        if number not in self._calls or self._calls[number].forgotten:
            raise Error("NO_SUCH", f"no call {number} is waiting")
        if number not in self._answered:
            raise BlockingIOError(f"call {number} was not answered yet")
        call = self._calls.pop(number)
        del self._answered[number]
        if call.error is not None:
            raise from_object(call.error)
        if call.result is None:
            raise self._broken.with_traceback(None)
        if call.doorbell is not None:
            self._doorbells[number] = call.doorbell
        return call.result[0], call.fd

    def forget(self, number):
        """Drops a call's answer, now or when it comes; nothing is cancelled at fp9d."""
        call = self._calls.get(number)
        if call is None:
            return
        if number not in self._answered:
            call.forgotten = True
            return
        del self._calls[number], self._answered[number]
        for fd in (call.fd, call.doorbell):
            if fd is not None:
                os.close(fd)

    def close(self):
        """Closes the descriptors that nobody took."""
        for call in self._calls.values():
            for fd in (call.fd, call.doorbell):
                if fd is not None:
                    os.close(fd)
        while self._doorbells:
            os.close(self._doorbells.popitem()[1])
        self._calls.clear()
        self._answered.clear()
        self._close_fds()
        self._broken = self._broken or Disconnected("INTERNAL", "the connection was closed")

    def _fd_wanted(self):
        return any(call.wants_fd and number not in self._answered for number, call in self._calls.items())

    def _close_fds(self):
        while self._fds:
            os.close(self._fds.popleft())

    def _take(self, data):
        if self._broken:
            raise self._broken.with_traceback(None)
        if not data:
            raise Disconnected("INTERNAL", "fp9d closed the connection")
        self._in += data
        while True:
            end = self._in.find(b"\n", self._scanned)
            if end < 0:
                break
            line = bytes(self._in[:end])
            del self._in[:end + 1]
            self._scanned = 0
            self._line(line)
        self._scanned = len(self._in)
        if len(self._in) >= LINE_MAX:
            raise Disconnected("INTERNAL", f"fp9d's answer is longer than {LINE_MAX} bytes")

    def _line(self, line):
        try:
            message = _decoder.decode(line.decode())
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise Disconnected("INTERNAL", f"fp9d's answer is no JSON object: {error}") from error
        method = message.get("method")
        if isinstance(method, str) and "id" not in message:
            if method == "ring.completed":
                pass  # only to wake who waits for the connection: waiting() looks at the rings
            elif self.on_notification:
                self.on_notification(method, message.get("params") or {})
            return
        self._answer(message)

    def _answer(self, message):
        number, error = message.get("id"), message.get("error")
        if ("result" in message) == ("error" in message) or ("error" in message and not isinstance(error, dict)):
            raise Disconnected("INTERNAL", "an answer without exactly one of result and error")
        if error is not None and number is None:
            raise Disconnected("INTERNAL", f"fp9d refused a line: {error.get('message')}")
        call = self._calls.get(number) if type(number) is int else None
        if call is None or number in self._answered:
            raise Disconnected("INTERNAL", "an answer to a call that does not wait for one")
        if error is not None:
            call.error = error
        else:
            call.result = (message["result"],)
            if call.wants_fd and self._fds:
                call.fd = self._fds.popleft()
                if isinstance(message["result"], dict) and message["result"].get("ring") and self._fds:
                    call.doorbell = self._fds.popleft()
        self._answered[number] = None
        if call.forgotten:
            self.forget(number)
