#include "link/fabric_ucx.h"

#ifndef EK_LINK_UCX

/* A build without UCX's headers says so. */
ek_status ek_link_fabric_ucx(ek_fabric **out_fabric EK_UNUSED, ek_err *err)
{
    return ek_err_set(err, EK_EUNSUPPORTED,
                      "this build has no fabric ucx; build it where libucx-dev is installed");
}

#else

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "base/assert.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define MESSAGE_ID  1
#define TAIL_MAX    4096   /* bytes of a body's second part, which goes with the header */
#define QUEUE_MAX   4      /* messages that have arrived and were not taken yet */
#define CLOSE_US    100000 /* for what is under way when a link closes */
#define CLOSE_TICKS 1000

/* The library's functions that are used here. */
#define UCX_CALLS(X)                  \
    X(ucp_config_read)                \
    X(ucp_config_release)             \
    X(ucp_init_version)               \
    X(ucp_cleanup)                    \
    X(ucp_worker_create)              \
    X(ucp_worker_destroy)             \
    X(ucp_worker_get_address)         \
    X(ucp_worker_release_address)     \
    X(ucp_worker_get_efd)             \
    X(ucp_worker_arm)                 \
    X(ucp_worker_signal)              \
    X(ucp_worker_progress)            \
    X(ucp_worker_set_am_recv_handler) \
    X(ucp_ep_create)                  \
    X(ucp_ep_close_nbx)               \
    X(ucp_am_send_nbx)                \
    X(ucp_am_recv_data_nbx)           \
    X(ucp_am_data_release)            \
    X(ucp_request_check_status)       \
    X(ucp_request_free)

typedef struct ucx_fabric {
    ek_fabric base;
    void *library; /* owned */
    ucp_context_h context;
#define UCX_POINTER(name) __typeof__(name) *name;
    UCX_CALLS(UCX_POINTER)
#undef UCX_POINTER
} ucx_fabric;

/* A message on its way in. */
typedef struct arrival {
    ek_wire_header header;
    size_t tail_bytes;
    uint8_t tail[TAIL_MAX];
    void *data; /* the library's, until it is released or received; NULL: none */
    size_t data_bytes;
    bool is_rendezvous; /* data is still with the sender */
} arrival;

typedef struct ucx_link {
    ek_link base;
    const ucx_fabric *fabric; /* borrowed */
    ucp_worker_h worker;      /* owned, like ep; one for each link, so that links have owners */
    ucp_ep_h ep;
    int event_fd;
    _Atomic bool interrupted;

    struct {
        ek_wire_header header;
        uint8_t tail[TAIL_MAX];
    } out;
    void *sending; /* a request, or NULL */

    arrival queue[QUEUE_MAX];
    int32_t first, n_queued;
    bool in_body;    /* of queue[first], whose header was taken */
    void *receiving; /* a request, or NULL */
} ucx_link;

static ek_status break_link(ucx_link *link, ek_status status, const char *why)
{
    if (link->base.broken.status == EK_OK) ek_err_set(&link->base.broken, status, "%s", why);
    return status;
}

/* ---- what the library calls, within progress ---- */

static ucs_status_t on_message(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param)
{
    ucx_link *link = arg;
    bool is_rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool persists = is_rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA);
    size_t least = sizeof(ek_wire_header);
    if (header_bytes < least || header_bytes > least + TAIL_MAX) {
        break_link(link, EK_EFORMAT, "what came is no message of evenkeel's");
        return UCS_OK;
    }
    if (link->n_queued == QUEUE_MAX || (bytes > 0 && !persists)) {
        break_link(link, EK_EFORMAT, "more messages than were asked for");
        return UCS_OK;
    }
    arrival *a = &link->queue[(link->first + link->n_queued++) % QUEUE_MAX];
    memcpy(&a->header, header, least);
    a->tail_bytes = header_bytes - least;
    memcpy(a->tail, (const uint8_t *)header + least, a->tail_bytes);
    a->data_bytes = bytes;
    a->data = bytes > 0 ? data : NULL;
    a->is_rendezvous = is_rendezvous;
    return a->data ? UCS_INPROGRESS : UCS_OK;
}

static void on_error(void *arg, ucp_ep_h ep EK_UNUSED, ucs_status_t status)
{
    char why[64];
    snprintf(why, sizeof why, "the peer is gone (UCX status %d)", (int)status);
    break_link(arg, EK_EPEER, why);
}

/* ---- messages ---- */

static ek_status make_progress(ucx_link *link)
{
    if (atomic_load_explicit(&link->interrupted, memory_order_acquire))
        return break_link(link, EK_EPEER, "interrupted");
    while (link->fabric->ucp_worker_progress(link->worker) != 0)
        continue;
    ek_status broken = link->base.broken.status;
    return broken == EK_OK ? EK_OK : broken == EK_EFORMAT ? EK_EFORMAT : EK_EPEER;
}

/* Whether a request has come to its end, which frees it. */
static ek_status look_at(ucx_link *link, void **request)
{
    if (!*request) return EK_OK;
    ucs_status_t status = link->fabric->ucp_request_check_status(*request);
    if (status == UCS_INPROGRESS) return EK_AGAIN;
    link->fabric->ucp_request_free(*request);
    *request = NULL;
    return status == UCS_OK ? EK_OK : break_link(link, EK_EPEER, "a transfer failed");
}

static ek_status keep_request(ucx_link *link, ucs_status_ptr_t result, void **request)
{
    *request = NULL;
    if (UCS_PTR_IS_ERR(result)) return break_link(link, EK_EPEER, "a transfer was refused");
    *request = result; /* NULL: it is done already */
    return look_at(link, request);
}

static ek_status link_flush(ek_link *base)
{
    ucx_link *link = (ucx_link *)base;
    ek_status status = make_progress(link);
    return status == EK_OK ? look_at(link, &link->sending) : EK_EPEER;
}

static ek_status link_send(ek_link *base, const ek_wire_header *header, const ek_span *parts,
                           int32_t n_parts)
{
    ucx_link *link = (ucx_link *)base;
    ek_assert(!link->sending && n_parts <= EK_FABRIC_PARTS_MAX);
    if (make_progress(link) != EK_OK) return EK_EPEER;
    ek_span data = n_parts > 0 ? parts[0] : (ek_span){0};
    ek_span tail = n_parts > 1 ? parts[1] : (ek_span){0};
    if (tail.len > TAIL_MAX) return break_link(link, EK_EPEER, "a message has too long an end");
    link->out.header = *header;
    memcpy(link->out.tail, tail.data ? tail.data : link->out.tail, tail.len);
    const ucp_request_param_t param = {0};
    base->bytes_sent += sizeof *header + header->body_bytes;
    return keep_request(link,
                        link->fabric->ucp_am_send_nbx(link->ep, MESSAGE_ID, &link->out,
                                                      sizeof *header + tail.len, data.data,
                                                      data.len, &param),
                        &link->sending);
}

static ek_status link_header(ek_link *base, ek_wire_header *out_header)
{
    ucx_link *link = (ucx_link *)base;
    ek_err err = {0};
    ek_assert(!link->in_body);
    ek_status status = make_progress(link);
    if (link->n_queued == 0) return status == EK_OK ? EK_AGAIN : status;
    /* What came before the peer went is still worth its while. */
    const arrival *a = &link->queue[link->first];
    status = ek_link_wire_check(&a->header, EK_WIRE_BODY_BYTES_MAX, &err);
    if (status != EK_OK) return break_link(link, status, err.text);
    if (a->header.body_bytes != a->data_bytes + a->tail_bytes)
        return break_link(link, EK_EFORMAT, "a body is not as long as its header says");
    link->in_body = true;
    *out_header = a->header;
    return EK_OK;
}

static ek_status take_data(ucx_link *link, arrival *a, uint8_t *out_body)
{
    const ucx_fabric *f = link->fabric;
    if (!a->data) return look_at(link, &link->receiving);
    void *data = a->data;
    a->data = NULL;
    if (a->is_rendezvous && out_body) {
        const ucp_request_param_t param = {0};
        return keep_request(
            link, f->ucp_am_recv_data_nbx(link->worker, data, out_body, a->data_bytes, &param),
            &link->receiving);
    }
    if (out_body) memcpy(out_body, data, a->data_bytes);
    f->ucp_am_data_release(link->worker, data);
    return EK_OK;
}

static ek_status link_body(ek_link *base, void *out_body)
{
    ucx_link *link = (ucx_link *)base;
    ek_assert(link->in_body);
    arrival *a = &link->queue[link->first];
    if (link->receiving && make_progress(link) != EK_OK) return EK_EPEER;
    ek_status status = take_data(link, a, out_body);
    if (status != EK_OK) return status;
    if (out_body) memcpy((uint8_t *)out_body + a->data_bytes, a->tail, a->tail_bytes);
    base->bytes_received += sizeof a->header + a->header.body_bytes;
    link->in_body = false;
    link->first = (link->first + 1) % QUEUE_MAX;
    link->n_queued--;
    return EK_OK;
}

static void link_wish(ek_link *base, ek_link_wish *out_wish)
{
    ucx_link *link = (ucx_link *)base;
    *out_wish = (ek_link_wish){.fd = link->event_fd, .read = true};
    if (make_progress(link) != EK_OK || (link->n_queued > 0 && !link->in_body))
        out_wish->is_ready = true;
    else if (link->sending || link->receiving)
        out_wish->is_ready = true; /* a long transfer goes on by calls, and no descriptor tells */
    else if (link->fabric->ucp_worker_arm(link->worker) != UCS_OK)
        out_wish->is_ready = true; /* something came in between */
}

static void link_interrupt(ek_link *base)
{
    ucx_link *link = (ucx_link *)base;
    atomic_store_explicit(&link->interrupted, true, memory_order_release);
    link->fabric->ucp_worker_signal(link->worker);
}

static ek_status link_handshake(ek_link *base EK_UNUSED, int64_t deadline_us EK_UNUSED,
                                ek_err *err EK_UNUSED)
{
    return EK_OK; /* the control link knows who it is */
}

static void end_transfers(ucx_link *link)
{
    const ucx_fabric *f = link->fabric;
    int64_t until_us = ek_sys_now_us() + CLOSE_US;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    void *closing = NULL;
    for (; link->n_queued > 0; link->n_queued--) {
        const arrival *a = &link->queue[link->first];
        if (a->data) f->ucp_am_data_release(link->worker, a->data);
        link->first = (link->first + 1) % QUEUE_MAX;
    }
    if (link->ep) keep_request(link, f->ucp_ep_close_nbx(link->ep, &param), &closing);
    for (int i = 0; i < CLOSE_TICKS && ek_sys_now_us() < until_us; i++) {
        f->ucp_worker_progress(link->worker);
        bool is_open = look_at(link, &closing) == EK_AGAIN;
        is_open |= look_at(link, &link->sending) == EK_AGAIN;
        is_open |= look_at(link, &link->receiving) == EK_AGAIN;
        if (!is_open && i > 10) break; /* a forced close ends requests in later rounds */
    }
}

static void link_close(ek_link *base)
{
    ucx_link *link = (ucx_link *)base;
    if (link->worker) {
        end_transfers(link);
        link->fabric->ucp_worker_destroy(link->worker);
    }
    ek_sys_free(link);
}

static const ek_link_ops link_ops = {
    .send = link_send,
    .flush = link_flush,
    .header = link_header,
    .body = link_body,
    .wish = link_wish,
    .interrupt = link_interrupt,
    .handshake = link_handshake,
    .close = link_close,
};

/* ---- meeting ---- */

static ek_status fabric_open(ek_fabric *base, ek_link **out_link, ek_err *err)
{
    const ucx_fabric *f = (const ucx_fabric *)base;
    ucx_link *link = ek_sys_calloc(1, sizeof *link);
    if (!link) return ek_err_set(err, EK_ENOMEM, "no memory for a link");
    link->base.ops = &link_ops;
    link->fabric = f;
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_PERSISTENT_DATA,
        .cb = on_message,
        .arg = link,
    };
    if (f->ucp_worker_create(f->context, &params, &link->worker) != UCS_OK) {
        link->worker = NULL;
    } else if (f->ucp_worker_set_am_recv_handler(link->worker, &handler) == UCS_OK &&
               f->ucp_worker_get_efd(link->worker, &link->event_fd) == UCS_OK) {
        snprintf(link->base.peer, sizeof link->base.peer, "ucx");
        *out_link = &link->base;
        return EK_OK;
    }
    link_close(&link->base);
    return ek_err_set(err, EK_EUNSUPPORTED, "UCX opens no link; UCX_LOG_LEVEL=info tells more");
}

static size_t fabric_address(const ek_link *base, uint8_t *out_address, size_t room)
{
    const ucx_link *link = (const ucx_link *)base;
    ucp_address_t *address;
    size_t bytes;
    if (link->fabric->ucp_worker_get_address(link->worker, &address, &bytes) != UCS_OK) return 0;
    if (bytes <= room) memcpy(out_address, address, bytes);
    link->fabric->ucp_worker_release_address(link->worker, address);
    return bytes <= room ? bytes : 0;
}

static ek_status fabric_meet(ek_link *base, const uint8_t *address, size_t bytes, ek_err *err)
{
    ucx_link *link = (ucx_link *)base;
    if (bytes == 0) return ek_err_set(err, EK_EFORMAT, "an empty address");
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .address = (const ucp_address_t *)(const void *)address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = link},
    };
    if (link->fabric->ucp_ep_create(link->worker, &params, &link->ep) == UCS_OK) return EK_OK;
    link->ep = NULL;
    return ek_err_set(err, EK_EPEER, "UCX reaches the peer by no transport that both have");
}

/* ---- the library ---- */

static void fabric_destroy(ek_fabric *base)
{
    ucx_fabric *f = (ucx_fabric *)base;
    if (f->context) f->ucp_cleanup(f->context);
    /* It stays loaded: it has threads and hooks that do not come out again. */
    ek_sys_free(f);
}

static const ek_fabric_ops fabric_ops = {
    .name = "ucx",
    .destroy = fabric_destroy,
    .open = fabric_open,
    .address = fabric_address,
    .meet = fabric_meet,
};

static bool load_calls(ucx_fabric *f)
{
    void *found;
#define UCX_LOAD(name)                \
    found = dlsym(f->library, #name); \
    if (!found) return false;         \
    memcpy(&f->name, &found, sizeof f->name);
    UCX_CALLS(UCX_LOAD)
#undef UCX_LOAD
    return true;
}

/* It reads its environment while it is loaded. What somebody has set stays as it is. */
static void prepare_environment(void)
{
    static const char *const settings[][2] = {
        {"UCX_HANDLE_ERRORS", "none"}, /* signals of this process are its own */
        {"UCX_ERROR_SIGNALS", ""},
        {"UCX_WARN_UNUSED_ENV_VARS", "n"},
        {"UCX_MEM_EVENTS", "n"},
        {"UCX_LOG_FILE", "stderr"}, /* standard output is the command's */
        /* Rendezvous costs several round trips on TCP: larger segments put it off. */
        {"UCX_TCP_TX_SEG_SIZE", "256K"},
        {"UCX_TCP_RX_SEG_SIZE", "512K"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(settings); i++)
        setenv(settings[i][0], settings[i][1], 0);
}

static ek_status begin(ucx_fabric *f, ek_err *err)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1,
    };
    ucp_config_t *config;
    if (f->ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return ek_err_set(err, EK_EUNSUPPORTED, "UCX cannot read its configuration (UCX_*)");
    ucs_status_t status =
        f->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &f->context);
    f->ucp_config_release(config);
    if (status == UCS_OK) return EK_OK;
    f->context = NULL;
    return ek_err_set(err, EK_EUNSUPPORTED, "UCX cannot begin (status %d)", (int)status);
}

ek_status ek_link_fabric_ucx(ek_fabric **out_fabric, ek_err *err)
{
    ucx_fabric *f = ek_sys_calloc(1, sizeof *f);
    if (!f) return ek_err_set(err, EK_ENOMEM, "no memory for the fabric");
    f->base.ops = &fabric_ops;
    prepare_environment();
    f->library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    ek_status status =
        f->library && load_calls(f)
            ? begin(f, err)
            : ek_err_set(err, EK_EUNSUPPORTED,
                         "the fabric ucx needs libucp.so.0 (Debian: libucx0), which is not here");
    if (status != EK_OK) {
        ek_sys_free(f);
        return status;
    }
    *out_fabric = &f->base;
    return EK_OK;
}

#endif
