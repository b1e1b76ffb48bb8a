#include "daemon/head/http_request.h"

#include <string.h>

#define METHOD_MAX 16

/* [begin, end) */
struct part {
    const char *begin, *end;
};

static bool is(struct part part, const char *text)
{
    return (size_t)(part.end - part.begin) == strlen(text) && memcmp(part.begin, text, strlen(text)) == 0;
}

static bool starts(struct part part, const char *text)
{
    return (size_t)(part.end - part.begin) >= strlen(text) && memcmp(part.begin, text, strlen(text)) == 0;
}

/* Up to the next blank or the end; *rest is moved behind it. */
static struct part next_word(struct part *rest)
{
    const char *blank = memchr(rest->begin, ' ', (size_t)(rest->end - rest->begin));
    struct part word = {rest->begin, blank ? blank : rest->end};
    rest->begin = blank ? blank + 1 : rest->end;
    return word;
}

/* "GET /metrics HTTP/1.1" */
static int line_status(struct part line, bool *ret_head_only)
{
    struct part rest = line, method = next_word(&rest), target = next_word(&rest), version = rest;
    if (method.begin == method.end || target.begin == target.end || !starts(version, "HTTP/"))
        return 400;
    if (!is(version, "HTTP/1.0") && !is(version, "HTTP/1.1"))
        return 505;
    const char *query = memchr(target.begin, '?', (size_t)(target.end - target.begin));
    struct part path = {target.begin, query ? query : target.end};
    *ret_head_only = is(method, "HEAD");
    if (!is(path, "/metrics"))
        return 404;
    return *ret_head_only || is(method, "GET") ? 200 : 405;
}

int http_request_status(const char *data, size_t length, bool *ret_head_only)
{
    *ret_head_only = false;
    size_t seen = length < HTTP_REQUEST_MAX ? length : HTTP_REQUEST_MAX;
    for (size_t i = 0; i < seen; i++) {
        unsigned char c = (unsigned char)data[i];
        bool in_method = i < METHOD_MAX && !memchr(data, ' ', i);
        /* TLS, a binary protocol, or a line that is no request's. */
        if ((c < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7f || (in_method && c != ' ' && (c < 'A' || c > 'Z')))
            return 400;
        if (c == '\n' && (i == 0 || data[i - 1] != '\r'))
            return 400;
    }
    const char *end = memmem(data, seen, "\r\n\r\n", 4);
    if (!end)
        return length >= HTTP_REQUEST_MAX ? 431 : 0;
    const char *line_end = memmem(data, seen, "\r\n", 2);
    return line_status((struct part){data, line_end}, ret_head_only);
}

const char *http_request_reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 505: return "HTTP Version Not Supported";
    default: return "";
    }
}
