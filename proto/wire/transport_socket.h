/* A connected stream socket (AF_UNIX socketpair of a local duck) as a transport. */
#ifndef FP9_WIRE_TRANSPORT_SOCKET_H
#define FP9_WIRE_TRANSPORT_SOCKET_H

#include "proto/wire/transport.h"

/* Takes fd (owned by the transport on success, untouched on failure) and makes it non-blocking and close-on-exec.
 * -ENOTSOCK BAD_REQUEST when fd is no stream socket. */
int transport_socket_new(int fd, struct transport **ret_transport, struct err *err);

#endif
