/* [daemon] metrics_listen: GET /metrics over HTTP, for Prometheus. Loop thread only.
 *
 * Our own few lines and not libevent's evhttp, which bounds neither the number of connections nor the time that one takes in all: here a
 * connection has one request of HTTP_REQUEST_MAX bytes, METRICS_HTTP_PATIENCE for everything, and at most METRICS_HTTP_CLIENTS are served
 * at a time; the others wait in the kernel's queue. The text is written at most once a second, however often it is asked for. */
#ifndef FP9_HEAD_METRICS_HTTP_H
#define FP9_HEAD_METRICS_HTTP_H

#include "daemon/head/head.h"

#define METRICS_HTTP_CLIENTS 16
#define METRICS_HTTP_PATIENCE (5 * CLOCK_NS_PER_S)

struct metrics_http;

/* "HOST:PORT"; a host's name is looked up now. */
/* Whether the address is one of this machine. Its port may be in use, by an fp9d that runs. */
int metrics_http_check(const char *address, struct err *err);
int metrics_http_new(struct head *head, const char *address, struct metrics_http **ret_http, struct err *err);
void metrics_http_free(struct metrics_http *http);
/* A few times a second: gives up connections whose time is over. NULL is allowed. */
void metrics_http_tick(struct metrics_http *http, uint64_t now);

#endif
