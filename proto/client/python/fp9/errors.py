"""What goes wrong, as exceptions."""


class Error(Exception):
    """A call failed; connection and sessions are as they were before it.

    name     "BAD_SHAPE", "BUSY", "DUCK_LOST", ...: fp9-control(7) lists the names. Programs go by it.
    message  one sentence
    values   dict with the numbers and names of the sentence, {} when there are none
    code     the code of the error object; 0 when the module itself refused the call
    """

    def __init__(self, name, message, values=None, code=0):
        super().__init__(f"{name}: {message}")
        self.name, self.message, self.values, self.code = name, message, dict(values or {}), code

    def __str__(self):
        return f"{self.name}: {self.message}"


class Disconnected(Error, ConnectionError):
    """The connection is of no use any more: closed by fp9d, or it sent what is no protocol. Every call of it fails with this, the name is
    INTERNAL."""


class NoDaemon(Disconnected):
    """Nobody listens at the socket. The name is NOT_READY."""


def from_object(error):
    """The error object of an answer as an Error."""
    data = dict(error["data"]) if isinstance(error.get("data"), dict) else {}
    name, message, code = data.pop("name", "INTERNAL"), error.get("message", ""), error.get("code", 0)
    return Error(str(name), str(message), data, code if isinstance(code, int) else 0)
