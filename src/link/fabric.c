#include "link/fabric.h"

#include <poll.h>

#include "base/assert.h"
#include "sys/clock.h"

#define LINKS_MAX    64      /* that are waited for together */
#define MESSAGE_US   1000000 /* a message that began to arrive is there by then */
#define ONE_SLICE_US 100000  /* of waiting, between two looks at the clock */

static int poll_ms(int64_t timeout_us)
{
    if (timeout_us <= 0) return 0;
    int64_t ms = (timeout_us + 999) / 1000;
    return ms > 60000 ? 60000 : (int)ms;
}

bool ek_link_wait(ek_link *const *links, int32_t n, int64_t timeout_us)
{
    struct pollfd fds[LINKS_MAX];
    nfds_t n_fds = 0;
    bool is_ready = false;
    for (int32_t i = 0; i < n && n_fds < LINKS_MAX; i++) {
        ek_link_wish wish;
        if (!links[i]) continue;
        links[i]->ops->wish(links[i], &wish);
        is_ready |= wish.is_ready;
        short events = (short)((wish.read ? POLLIN : 0) | (wish.write ? POLLOUT : 0));
        fds[n_fds++] = (struct pollfd){.fd = wish.fd, .events = events};
    }
    return is_ready || poll(fds, n_fds, poll_ms(timeout_us)) != 0;
}

/* Until the link can go on, or the deadline. @return false: it has passed */
static bool wait_one(ek_link *link, int64_t deadline_us)
{
    int64_t left_us = deadline_us - ek_sys_now_us();
    if (left_us <= 0) return false;
    ek_link_wait(&link, 1, left_us < ONE_SLICE_US ? left_us : ONE_SLICE_US);
    return true;
}

ek_status ek_link_send(ek_link *link, const ek_wire_header *header, ek_span body,
                       int64_t deadline_us)
{
    ek_status status = link->ops->send(link, header, &body, body.len ? 1 : 0);
    while (status == EK_AGAIN) {
        if (!wait_one(link, deadline_us)) return EK_ETIMEOUT;
        status = link->ops->flush(link);
    }
    return status;
}

ek_status ek_link_receive(ek_link *link, ek_wire_header *out_header, void *out_body, size_t room,
                          int64_t deadline_us)
{
    ek_status status;
    while ((status = link->ops->header(link, out_header)) == EK_AGAIN)
        if (!wait_one(link, deadline_us)) return EK_AGAIN;
    if (status != EK_OK) return status;
    if (out_header->body_bytes > room)
        return ek_err_set(&link->broken, EK_EFORMAT,
                          "a message of %u bytes where at most %zu have room",
                          (unsigned)out_header->body_bytes, room);
    int64_t until_us = ek_sys_now_us() + MESSAGE_US;
    while ((status = link->ops->body(link, out_body)) == EK_AGAIN)
        if (!wait_one(link, until_us)) return EK_ETIMEOUT;
    return status;
}
