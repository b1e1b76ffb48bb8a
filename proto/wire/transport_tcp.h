/* A connected TCP socket as a transport, in plaintext, and the address a person writes for it. */
#ifndef FP9_WIRE_TRANSPORT_TCP_H
#define FP9_WIRE_TRANSPORT_TCP_H

#include "proto/wire/transport.h"

#define TRANSPORT_TCP_HOST_MAX 256
#define TRANSPORT_TCP_PORT_MAX 6

/* "HOST:PORT" or "[HOST]:PORT" (an IPv6 address stands in brackets), port 1 to 65535. */
int transport_tcp_split(const char *address, char ret_host[TRANSPORT_TCP_HOST_MAX], char ret_port[TRANSPORT_TCP_PORT_MAX], struct err *err);

/* As transport_socket_new. The socket sends at once (TCP_NODELAY) and gives a peer up whose machine has answered nothing for about ten
 * seconds, whether or not anything is on its way to it (TCP_USER_TIMEOUT, keepalive). */
int transport_tcp_new(int fd, struct transport **ret_transport, struct err *err);

#endif
