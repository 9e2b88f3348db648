/* Files below a directory. Requests take turns, a piece at a time. */
#include <inttypes.h>
#include <string.h>

#include "store/carrier.h"
#include "sys/mem.h"
#include "sys/sparse.h"

#define PIECE_BYTES ((size_t)1 << 20)

typedef struct job {
    bool busy;
    ek_store_request request;
    int64_t at, end;
    ek_sys_reader reader; /* owned while busy, unless `wrong` */
    bool wrong;           /* could not be opened: `err` says why */
    ek_err err;
} job;

typedef struct disk {
    ek_store_carrier carrier; /* first: what callers hold */
    int32_t n_slots, turn;
    uint8_t *piece; /* (PIECE_BYTES) owned */
    job jobs[EK_STORE_SLOTS_MAX];
} disk;

static disk *of(ek_store_carrier *carrier)
{
    return (disk *)carrier;
}

static ek_status start(ek_store_carrier *carrier, int32_t slot, const ek_store_request *request,
                       ek_err *err)
{
    char path[EK_STORE_URL_MAX];
    job *j = &of(carrier)->jobs[slot];
    if (!ek_store_carrier_path(carrier, request->name, path))
        return ek_err_set(err, EK_EINVAL, "%s: the path is too long", carrier->place);
    *j = (job){.busy = true, .request = *request, .at = request->offset};
    j->end = request->bytes > 0 ? request->offset + request->bytes : INT64_MAX;
    int64_t bytes = ek_sys_file_bytes(path);
    j->wrong = ek_sys_reader_open(path, &j->reader, &j->err) != EK_OK;
    if (!j->wrong && request->file_bytes > 0 && bytes != request->file_bytes) {
        ek_sys_reader_close(&j->reader);
        j->wrong = true;
        ek_err_set(&j->err, EK_EFORMAT, "%s: has %" PRId64 " bytes, not %" PRId64, path, bytes,
                   request->file_bytes);
    }
    return EK_OK;
}

/* Whether the job is at its end, and which. */
static bool move(disk *d, job *j, ek_store_verdict *out_verdict)
{
    if (j->wrong) {
        *out_verdict = EK_STORE_ABSENT;
        return true;
    }
    size_t want = j->end - j->at < (int64_t)PIECE_BYTES ? (size_t)(j->end - j->at) : PIECE_BYTES;
    int64_t n = ek_sys_reader_at(&j->reader, j->at, d->piece, want);
    if (n < 0) {
        ek_err_set(&j->err, EK_EIO, "%s/%s: cannot be read", d->carrier.place, j->request.name);
        *out_verdict = EK_STORE_ABSENT;
        return true;
    }
    bool go = n == 0 || j->request.take(j->request.ctx, j->at, (ek_span){d->piece, (size_t)n});
    j->at += n;
    *out_verdict = go ? EK_STORE_CAME : EK_STORE_REFUSED;
    return !go || n == 0 || j->at == j->end;
}

static bool step(ek_store_carrier *carrier, int32_t wait_ms, ek_store_outcome *out_outcome)
{
    disk *d = of(carrier);
    (void)wait_ms;
    for (int32_t i = 0; i < d->n_slots; i++) {
        int32_t slot = d->turn;
        job *j = &d->jobs[slot];
        d->turn = (d->turn + 1) % d->n_slots;
        ek_store_verdict verdict;
        if (!j->busy) continue;
        if (!move(d, j, &verdict)) return false;
        if (!j->wrong) ek_sys_reader_close(&j->reader);
        j->busy = false;
        *out_outcome = (ek_store_outcome){.slot = slot, .verdict = verdict, .err = j->err};
        return true;
    }
    return false;
}

static void close_disk(ek_store_carrier *carrier)
{
    disk *d = of(carrier);
    for (int32_t i = 0; i < d->n_slots; i++)
        if (d->jobs[i].busy && !d->jobs[i].wrong) ek_sys_reader_close(&d->jobs[i].reader);
    ek_sys_free(d->piece);
    ek_sys_free(d);
}

ek_status ek_store_carrier_open_disk(int32_t n_slots, ek_store_carrier **out_carrier, ek_err *err)
{
    static const ek_store_carrier_ops ops = {start, step, close_disk};
    disk *d = ek_sys_calloc(1, sizeof *d);
    if (d) d->piece = ek_sys_calloc(1, PIECE_BYTES);
    if (!d || !d->piece) {
        ek_sys_free(d);
        return ek_err_set(err, EK_ENOMEM, "no memory to read files");
    }
    d->carrier.ops = &ops;
    d->n_slots = n_slots;
    *out_carrier = &d->carrier;
    return EK_OK;
}
