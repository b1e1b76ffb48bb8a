"""fp9: talking to fp9d from Python. The same calls as libfp9; the protocol underneath is fp9-control(7).

One token through layer 1 of a model whose layer 1 is MoE with 2 experts a token:

    import fp9

    with fp9.connect() as conn:                                   # FP9_SOCKET, or /run/fp9d/control.sock
        conn.model_load("/models/mymodel", name="mymodel", progress=print)
        with conn.session_open("mymodel", max_tokens=4, output_dtype="f32") as session:
            x = fp9.to_bf16([0.5] * session.hidden_size)          # BF16 bit patterns
            step = session.decode(1, x, ids, weights)             # array("i", [3, 5]), array("f", [0.7, 0.3])
            print(step.y[0, 0], step.timing["judge_wait_us"])

Without a copy: fill session.places.x, .topk_ids and .topk_weights, which are the memory shared with fp9d, and call
session.decode(1, tokens=1, top_k=2). Without waiting: step = session.start("decode", 1, x, ids, weights), other things meanwhile,
step.wait(). Several steps are under way at once in the lanes of a session, and in
several sessions of one connection. proto/client/python/examples has programs.

Arrays     numpy arrays are taken and given where numpy is installed, memoryviews otherwise (python3 -c "import fp9" needs the standard
           library only). Shapes are row-major, elements little-endian. BF16 is passed as its bits, uint16: to_bf16(), to_f32().
Units      _us are microseconds, _bytes bytes, timeouts seconds.
Errors     Error carries name, message and values; Disconnected is the end of a connection, NoDaemon its absence, TimeoutError an
           answer that takes longer than the caller's timeout. All else raised is a mistake in the program.
Threads    a connection with its sessions belongs to one thread at a time; different connections are independent.
"""
from .arrays import to_bf16, to_f32
from .connection import SOCKET_DEFAULT, Connection, connect
from .core import Core
from .errors import Disconnected, Error, NoDaemon
from .session import Places, Session, Step
from .tensors import Tensor, read_tensors, write_tensors

__all__ = ["SOCKET_DEFAULT", "Connection", "Core", "Disconnected", "Error", "NoDaemon", "Places", "Session", "Step", "Tensor", "connect",
           "read_tensors", "to_bf16", "to_f32", "write_tensors"]
