/*
 * A worker without weights: greets as one does, and sends each dispatch's rows back as they came.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster_parts.h"
#include "link/expert_set.h"
#include "link/fabric.h"
#include "link/fabric_tcp.h"
#include "link/fabric_ucx.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define PATIENCE_US 120000000
#define EPOCH       1

typedef struct echo {
    const ek_bench_way *way;
    ek_fabric *tls, *tcp, *ucx;
    ek_listener *listener, *plain;
    ek_link *control, *data;
    uint8_t *body;
    uint32_t busy_us[EK_BENCH_EXPERTS];
} echo;

ek_wire_shape ek_bench_cluster_shape(void)
{
    return (ek_wire_shape){
        .n_layers = 1,
        .n_experts = EK_BENCH_EXPERTS,
        .d_model = EK_BENCH_D_MODEL,
        .top_k = 1,
        .tokens_max = EK_BENCH_TOKENS_MAX,
    };
}

/* ---- greeting ---- */

static ek_status greet(echo *e)
{
    uint8_t body[EK_WIRE_ADDRESS_MAX];
    ek_wire_header header;
    int64_t until_us = ek_sys_now_us() + PATIENCE_US;
    const size_t set_bytes = ek_link_set_bytes(1, EK_BENCH_EXPERTS);
    ek_wire_welcome welcome = {
        .n_threads = 1,
        .plain_port = e->plain ? e->tcp->ops->port(e->plain) : 0,
        .fabrics = e->ucx ? EK_WIRE_FABRIC_UCX : 0,
    };
    ek_err err = {0};
    if (e->tls->ops->accept(e->listener, PATIENCE_US, &e->control) != EK_OK ||
        e->control->ops->handshake(e->control, until_us, &err) != EK_OK)
        return EK_EPEER;
    ek_status status = ek_link_receive(e->control, &header, body, sizeof body, until_us);
    if (status != EK_OK || header.kind != EK_WIRE_HELLO) return EK_EPEER;
    memcpy(body, &welcome, sizeof welcome);
    ek_expert_set set = {1, EK_BENCH_EXPERTS, (uint64_t *)(void *)(body + sizeof welcome)};
    memset(set.bits, 0, set_bytes);
    for (int32_t i = 0; i < EK_BENCH_EXPERTS; i++)
        ek_link_set_add(&set, 0, i);
    header = ek_link_wire_header(EK_WIRE_WELCOME, EPOCH);
    header.body_bytes = (uint32_t)(sizeof welcome + set_bytes);
    return ek_link_send(e->control, &header, (ek_span){body, header.body_bytes}, until_us);
}

/* The front's half of a link over UCX comes over the control link. */
static ek_status meet(echo *e)
{
    uint8_t address[EK_WIRE_ADDRESS_MAX], own[EK_WIRE_ADDRESS_MAX];
    ek_wire_header header;
    int64_t until_us = ek_sys_now_us() + PATIENCE_US;
    ek_err err = {0};
    ek_status status;
    do
        status = ek_link_receive(e->control, &header, address, sizeof address, until_us);
    while (status == EK_OK && header.kind != EK_WIRE_OPEN);
    if (status == EK_OK) status = e->ucx->ops->open(e->ucx, &e->data, &err);
    if (status == EK_OK) status = e->ucx->ops->meet(e->data, address, header.body_bytes, &err);
    if (status != EK_OK) return status;
    header = ek_link_wire_header(EK_WIRE_OPENED, EPOCH);
    header.body_bytes = (uint32_t)e->ucx->ops->address(e->data, own, sizeof own);
    return ek_link_send(e->control, &header, (ek_span){own, header.body_bytes}, until_us);
}

static ek_status attach(echo *e)
{
    uint8_t token[EK_WIRE_TOKEN_BYTES];
    ek_wire_header header;
    int64_t until_us = ek_sys_now_us() + PATIENCE_US;
    ek_err err = {0};
    ek_fabric *fabric = e->plain ? e->tcp : e->tls;
    ek_status status =
        e->ucx ? meet(e)
               : fabric->ops->accept(e->plain ? e->plain : e->listener, PATIENCE_US, &e->data);
    if (status == EK_OK) status = e->data->ops->handshake(e->data, until_us, &err);
    if (status == EK_OK) status = ek_link_receive(e->data, &header, token, sizeof token, until_us);
    if (status != EK_OK || header.kind != EK_WIRE_ATTACH) return EK_EPEER;
    header = ek_link_wire_header(EK_WIRE_WELCOME, EPOCH);
    return ek_link_send(e->data, &header, (ek_span){0}, until_us);
}

/* ---- dispatches ---- */

static ek_status wait_for(ek_link *link, ek_status status)
{
    if (status == EK_AGAIN) ek_link_wait(&link, 1, PATIENCE_US);
    return status;
}

static ek_status answer(echo *e, const ek_wire_header *in)
{
    ek_wire_shape shape = ek_bench_cluster_shape();
    ek_wire_dispatch_layout lay;
    ek_wire_combine_layout back;
    ek_wire_header out = *in;
    ek_status status = ek_link_wire_dispatch_lay(&shape, in, &lay);
    if (status == EK_OK) status = ek_link_wire_combine_lay(&shape, in, &back);
    if (status != EK_OK) return status;
    out.kind = EK_WIRE_COMBINE;
    out.body_bytes = (uint32_t)back.bytes;
    /* With one expert for each token, rows are tokens, and those of a message come in order. */
    const ek_span parts[] = {{e->body + lay.x, back.busy_us},
                             {(const uint8_t *)e->busy_us, back.bytes - back.busy_us}};
    status = wait_for(e->data, e->data->ops->send(e->data, &out, parts, 2));
    while (status == EK_AGAIN)
        status = wait_for(e->data, e->data->ops->flush(e->data));
    return status;
}

static void serve(echo *e)
{
    ek_wire_header header;
    for (ek_status status = EK_OK; status == EK_OK;) {
        while ((status = wait_for(e->data, e->data->ops->header(e->data, &header))) == EK_AGAIN)
            continue;
        while (status == EK_OK &&
               (status = wait_for(e->data, e->data->ops->body(e->data, e->body))) == EK_AGAIN)
            status = EK_OK;
        if (status == EK_OK) status = answer(e, &header);
    }
}

/* ---- the process ---- */

static ek_status open_echo(echo *e, const char *certs, uint16_t *out_port, ek_err *err)
{
    ek_wire_shape shape = ek_bench_cluster_shape();
    const char *any = "127.0.0.1:0";
    ek_status status = ek_link_fabric_tls(certs, &e->tls, err);
    if (status == EK_OK) status = e->tls->ops->listen(e->tls, any, &e->listener, err);
    if (status == EK_OK && e->way->fabric == EK_LINK_FABRIC_TCP) {
        status = ek_link_fabric_tcp(&e->tcp, err);
        if (status == EK_OK) status = e->tcp->ops->listen(e->tcp, any, &e->plain, err);
    }
    if (status == EK_OK && e->way->fabric == EK_LINK_FABRIC_UCX) {
        setenv("UCX_TLS", e->way->ucx_transports, 1);
        status = ek_link_fabric_ucx(&e->ucx, err);
    }
    if (status != EK_OK) return status;
    e->body = ek_sys_calloc(1, ek_link_wire_dispatch_bytes_max(&shape));
    *out_port = e->tls->ops->port(e->listener);
    return e->body ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory for a worker");
}

static void run_echo(const ek_bench_way *way, const char *certs, int port_fd)
{
    echo e = {.way = way};
    uint16_t port = 0;
    ek_err err = {0};
    signal(SIGPIPE, SIG_IGN);
    if (open_echo(&e, certs, &port, &err) != EK_OK) {
        fprintf(stderr, "%s: %s\n", way->name, err.text);
        _exit(1);
    }
    bool told = write(port_fd, &port, sizeof port) == (ssize_t)sizeof port;
    close(port_fd);
    if (told && greet(&e) == EK_OK && attach(&e) == EK_OK) serve(&e);
    _exit(0); /* what it has goes with it */
}

ek_status ek_bench_echo_start(const ek_bench_way *way, const char *certs, ek_bench_echo *out_echo,
                              ek_err *err)
{
    int ends[2];
    *out_echo = (ek_bench_echo){0};
    if (pipe(ends) != 0) return ek_err_set(err, EK_EINTERNAL, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        run_echo(way, certs, ends[1]);
    }
    close(ends[1]);
    bool is_there =
        pid > 0 && read(ends[0], &out_echo->port, sizeof out_echo->port) == sizeof out_echo->port;
    close(ends[0]);
    out_echo->pid = pid > 0 ? pid : 0;
    if (is_there) return EK_OK;
    ek_bench_echo_stop(out_echo);
    return ek_err_set(err, EK_EUNSUPPORTED, "no worker over %s here", way->name);
}

void ek_bench_echo_stop(ek_bench_echo *worker)
{
    if (worker->pid <= 0) return;
    kill(worker->pid, SIGTERM);
    waitpid(worker->pid, NULL, 0);
    worker->pid = 0;
}
