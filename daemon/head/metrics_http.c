#include "daemon/head/metrics_http.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "daemon/head/http_request.h"
#include "daemon/head/prometheus.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/wire/transport_tcp.h"

#define BACKLOG 16
#define HEAD_MAX 512
#define PAGE_AGE CLOCK_NS_PER_S

/* The text as it was written last, shared by those who get it. */
struct page {
    unsigned refs;
    uint64_t made_ns;
    struct buf text;
};

struct visitor {
    struct metrics_http *http;
    int fd; /* owned; -1: the place is free */
    struct loop_io *io;
    uint64_t until_ns;
    char request[HTTP_REQUEST_MAX];
    size_t request_length;
    bool answering, answered; /* an answer is being written; is written, and the peer is to close */
    char head[HEAD_MAX];
    size_t head_length, sent; /* sent of head and page together */
    struct page *page;        /* NULL: the answer has no body */
};

struct metrics_http {
    struct head *head;
    int fd; /* owned */
    struct loop_io *io;
    bool deaf; /* all places are taken, or descriptors are short until the next tick */
    struct page *page;
    struct visitor visitors[METRICS_HTTP_CLIENTS];
};

static void page_unref(struct page *page)
{
    if (!page || --page->refs)
        return;
    buf_release(&page->text);
    free(page);
}

/* A reference of the caller's; NULL: it cannot be made. */
static struct page *page_now(struct metrics_http *http)
{
    uint64_t now = clock_now_ns();
    if (!http->page || now - http->page->made_ns >= PAGE_AGE) {
        struct page *page = calloc(1, sizeof *page);
        struct err err = {0};
        if (!page)
            return NULL;
        *page = (struct page){.refs = 1, .made_ns = now};
        if (prometheus_write(http->head, now, &page->text, &err) < 0) {
            log_warning("metrics", "%s", err.message);
            page_unref(page);
            return NULL;
        }
        page_unref(http->page);
        http->page = page;
    }
    http->page->refs++;
    return http->page;
}

static void leave(struct visitor *visitor)
{
    loop_io_free(visitor->io);
    closep(&visitor->fd);
    page_unref(visitor->page);
    struct metrics_http *http = visitor->http;
    visitor->io = NULL;
    visitor->page = NULL;
    if (http->deaf) {
        http->deaf = false;
        loop_io_want(http->io, true, false);
    }
}

static void begin_answer(struct visitor *visitor, int status, bool head_only)
{
    struct page *page = status == 200 ? page_now(visitor->http) : NULL;
    bool failed = status == 200 && !page;
    size_t length = page ? page->text.length : 0;
    visitor->head_length = (size_t)snprintf(
        visitor->head, sizeof visitor->head, "HTTP/1.1 %d %s\r\n%s%sContent-Length: %zu\r\nConnection: close\r\n\r\n",
        failed ? 503 : status, failed ? "Service Unavailable" : http_request_reason(status), status == 405 ? "Allow: GET, HEAD\r\n" : "",
        page ? "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" : "", length);
    visitor->answering = true;
    visitor->page = page;
    if (!head_only)
        return;
    page_unref(page);
    visitor->page = NULL;
}

/* False: the peer is gone. */
static bool write_answer(struct visitor *visitor)
{
    size_t body = visitor->page ? visitor->page->text.length : 0, all = visitor->head_length + body;
    while (visitor->sent < all) {
        struct iovec parts[2];
        int count = 0;
        if (visitor->sent < visitor->head_length)
            parts[count++] = (struct iovec){visitor->head + visitor->sent, visitor->head_length - visitor->sent};
        size_t of_body = visitor->sent > visitor->head_length ? visitor->sent - visitor->head_length : 0;
        if (body)
            parts[count++] = (struct iovec){visitor->page->text.data + of_body, body - of_body};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t n = sendmsg(visitor->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            loop_io_want(visitor->io, false, true);
            return true;
        }
        if (n < 0)
            return false;
        visitor->sent += (size_t)n;
    }
    /* What the peer sends now is read and forgotten until it closes: a reset would take the answer's end with it. */
    visitor->answered = true;
    loop_io_want(visitor->io, true, false);
    return shutdown(visitor->fd, SHUT_WR) == 0;
}

/* False: the peer is gone. */
static bool read_request(struct visitor *visitor)
{
    size_t room = sizeof visitor->request - visitor->request_length;
    ssize_t n = recv(visitor->fd, visitor->request + visitor->request_length, room, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    visitor->request_length += (size_t)n;
    bool head_only;
    int status = http_request_status(visitor->request, visitor->request_length, &head_only);
    if (!status)
        return true;
    begin_answer(visitor, status, head_only);
    return write_answer(visitor);
}

static void visitor_event(void *user, bool readable, bool writable)
{
    struct visitor *visitor = user;
    bool stay = true;
    if (visitor->answered) {
        char unread[4096]; /* a turn's worth */
        ssize_t n = readable ? recv(visitor->fd, unread, sizeof unread, MSG_DONTWAIT) : 1;
        stay = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    } else if (visitor->answering) {
        stay = !writable || write_answer(visitor);
    } else if (readable) {
        stay = read_request(visitor);
    }
    if (!stay)
        leave(visitor);
}

static struct visitor *free_place(struct metrics_http *http)
{
    for (size_t i = 0; i < METRICS_HTTP_CLIENTS; i++)
        if (http->visitors[i].fd < 0)
            return &http->visitors[i];
    return NULL;
}

static void go_deaf(struct metrics_http *http)
{
    http->deaf = true;
    loop_io_want(http->io, false, false);
}

static void visitors_come(void *user, bool readable, bool writable)
{
    (void)readable;
    (void)writable;
    struct metrics_http *http = user;
    struct visitor *place;
    while ((place = free_place(http)) != NULL) {
        int fd = accept4(http->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                go_deaf(http);
            return;
        }
        *place = (struct visitor){.http = http, .fd = fd, .until_ns = clock_now_ns() + METRICS_HTTP_PATIENCE};
        if (loop_io_add(http->head->loop, fd, visitor_event, place, &place->io, NULL) < 0)
            leave(place);
    }
    go_deaf(http);
}

void metrics_http_tick(struct metrics_http *http, uint64_t now)
{
    if (!http)
        return;
    for (size_t i = 0; i < METRICS_HTTP_CLIENTS; i++)
        if (http->visitors[i].fd >= 0 && now >= http->visitors[i].until_ns)
            leave(&http->visitors[i]);
    if (http->deaf && free_place(http)) {
        http->deaf = false;
        loop_io_want(http->io, true, false);
    }
}

/* any_port: one that is free, in place of the address's own. */
static int open_socket(const char *address, bool any_port, int *ret_fd, struct err *err)
{
    char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
    int r = transport_tcp_split(address, host, port, err);
    if (r < 0)
        return r;
    if (any_port)
        memcpy(port, "0", 2);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    r = getaddrinfo(host, port, &hints, &found);
    if (r != 0)
        return err_set(err, -EADDRNOTAVAIL, ERR_BAD_REQUEST, "%s: %s", address, gai_strerror(r));
    _cleanup_(closep) int fd = -1;
    int one = 1, number = EADDRNOTAVAIL;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        closep(&fd);
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
            listen(fd, BACKLOG) == 0) {
            number = 0;
            break;
        }
        number = errno;
    }
    freeaddrinfo(found);
    errno = number;
    if (number)
        return err_errno(err, "%s", address);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int metrics_http_check(const char *address, struct err *err)
{
    _cleanup_(closep) int fd = -1;
    return open_socket(address, true, &fd, err) < 0 ? err_prefix(err, "[daemon] metrics_listen") : 0;
}

int metrics_http_new(struct head *head, const char *address, struct metrics_http **ret_http, struct err *err)
{
    struct metrics_http *http = calloc(1, sizeof *http);
    if (!http)
        return err_no_memory(err, "metrics_listen", sizeof *http);
    http->head = head;
    http->fd = -1;
    for (size_t i = 0; i < METRICS_HTTP_CLIENTS; i++)
        http->visitors[i].fd = -1;
    int r = open_socket(address, false, &http->fd, err);
    if (r == 0)
        r = loop_io_add(head->loop, http->fd, visitors_come, http, &http->io, err);
    if (r < 0) {
        metrics_http_free(http);
        return err_prefix(err, "[daemon] metrics_listen");
    }
    log_info("metrics", "http://%s/metrics", address);
    *ret_http = http;
    return 0;
}

void metrics_http_free(struct metrics_http *http)
{
    if (!http)
        return;
    for (size_t i = 0; i < METRICS_HTTP_CLIENTS; i++) {
        loop_io_free(http->visitors[i].io);
        closep(&http->visitors[i].fd);
        page_unref(http->visitors[i].page);
    }
    loop_io_free(http->io);
    closep(&http->fd);
    page_unref(http->page);
    free(http);
}
