#include "proto/wire/transport_tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/size.h"
#include "proto/wire/transport_socket.h"

#define GONE_MS 10000 /* unanswered bytes for so long: the peer's machine is gone */
#define IDLE_S 4      /* then probes, GONE_MS in all */
#define PROBE_S 2
#define PROBES 3
#define UNSENT_MAX (128 * 1024) /* bytes in the kernel that are not on the wire yet: a step waits behind them */

int transport_tcp_split(const char *address, char ret_host[TRANSPORT_TCP_HOST_MAX], char ret_port[TRANSPORT_TCP_PORT_MAX], struct err *err)
{
    const char *colon = strrchr(address, ':');
    uint64_t port;
    if (!colon || colon == address || !size_parse_u64(colon + 1, 1, 65535, &port))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "address \"%.200s\": is not HOST:PORT with a port from 1 to 65535", address);
    const char *host = address;
    size_t length = (size_t)(colon - address);
    if (host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    } else if (memchr(host, ':', length)) {
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "address \"%.200s\": an IPv6 address stands in brackets, as in [::1]:7909", address);
    }
    if (length == 0 || length >= TRANSPORT_TCP_HOST_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "address \"%.200s\": its host has %zu bytes, 1 to %d are possible", address, length,
                       TRANSPORT_TCP_HOST_MAX - 1);
    memcpy(ret_host, host, length);
    ret_host[length] = '\0';
    snprintf(ret_port, TRANSPORT_TCP_PORT_MAX, "%u", (unsigned)port);
    return 0;
}

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

int transport_tcp_new(int fd, struct transport **ret_transport, struct err *err)
{
    if (set(fd, IPPROTO_TCP, TCP_NODELAY, 1) < 0 || set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_MAX) < 0 ||
        set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, GONE_MS) < 0 || set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) < 0 ||
        set(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S) < 0 || set(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S) < 0 ||
        set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES) < 0)
        return err_errno(err, "descriptor %d is no TCP socket", fd);
    return transport_socket_new(fd, ret_transport, err);
}
