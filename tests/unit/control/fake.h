/* A daemon for one connection, in the test's own process: the test says which bytes and descriptors go out. */
#ifndef FP9_TEST_FAKE_H
#define FP9_TEST_FAKE_H

#include <stddef.h>
#include <sys/socket.h>
#include <string.h>

static inline ssize_t fake_send(int fd, const void *data, size_t length, const int *fds, size_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(16 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = (void *)data, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

#endif
