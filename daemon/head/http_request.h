/* PURE. What a peer of the metrics listener asks for: one request of HTTP/1.x, no body looked at. */
#ifndef FP9_HEAD_HTTP_REQUEST_H
#define FP9_HEAD_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_REQUEST_MAX 8192 /* bytes of the request's head, its empty line counted */

/* The status to answer with, 0 while the head is not complete. 200 GET or HEAD of /metrics (a query is ignored), 400 not HTTP, 404 another
 * path, 405 another method, 431 a head of HTTP_REQUEST_MAX bytes or more, 505 another HTTP than 1.x. What cannot become right is refused
 * before it is complete. *ret_head_only: HEAD, the answer has no body. */
int http_request_status(const char *data, size_t length, bool *ret_head_only);

/* "Not Found"; "" for a status that is not above. */
const char *http_request_reason(int status);

#endif
