/* Addresses of TCP links, and the transport over them. */
#include <setjmp.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "proto/wire/transport_tcp.h"

static void addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *port;
    } good[] = {
        {"kitchen:7909", "kitchen", "7909"},       {"127.0.0.1:1", "127.0.0.1", "1"}, {"[::1]:65535", "::1", "65535"},
        {"[fe80::1%eth0]:7", "fe80::1%eth0", "7"}, {"a.b-c.d:80", "a.b-c.d", "80"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
        struct err err = {0};
        assert_int_equal(transport_tcp_split(good[i].text, host, port, &err), 0);
        assert_string_equal(host, good[i].host);
        assert_string_equal(port, good[i].port);
    }
}

static void refusals(void **state)
{
    (void)state;
    char longest[TRANSPORT_TCP_HOST_MAX + 8];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + TRANSPORT_TCP_HOST_MAX, ":1", 3);
    const char *bad[] = {"",         ":",    "kitchen",    "kitchen:", ":7909", "kitchen:0", "kitchen:65536", "kitchen:-1", "kitchen:7909x",
                         "::1:7909", "[]:7", "kitchen: 7", longest};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char host[TRANSPORT_TCP_HOST_MAX] = "as it was", port[TRANSPORT_TCP_PORT_MAX] = "9";
        struct err err = {0};
        if (transport_tcp_split(bad[i], host, port, &err) != -EINVAL)
            fail_msg("\"%s\" was taken: %s %s", bad[i], host, port);
        assert_int_equal(err.name, ERR_BAD_REQUEST);
        assert_string_equal(host, "as it was");
        assert_string_equal(port, "9");
    }
}

static void sends_at_once(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    _cleanup_(closep) int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &length), 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    _cleanup_(closep) int other = accept(listening, NULL, NULL);
    struct err err = {0};
    _cleanup_(transport_closep) struct transport *transport = NULL;
    assert_int_equal(transport_tcp_new(fd, &transport, &err), 0);
    int value = 0;
    socklen_t size = sizeof value;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    assert_int_equal(value, 1);
    char byte = 0;
    assert_int_equal(transport->read(transport, &byte, 1), -EAGAIN);
    assert_int_equal(send(other, "x", 1, MSG_NOSIGNAL), 1);
    while (transport->read(transport, &byte, 1) == -EAGAIN)
        continue;
    assert_int_equal(byte, 'x');
}

static void only_tcp(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    struct transport *transport = NULL;
    struct err err = {0};
    assert_true(transport_tcp_new(pair[0], &transport, &err) < 0);
    assert_non_null(strstr(err.message, "no TCP socket"));
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(refusals),
        cmocka_unit_test(sends_at_once),
        cmocka_unit_test(only_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
