/* Checkpoints: a run that was interrupted goes on where it was. */
#include <string.h>

#include "cli/calibrate.h"
#include "sys/sha256.h"

#define MAGIC "GCK2"

/* The file: this, the arrays of for_each_array, the tuner's state, and a SHA-256 of all of it. */
typedef struct head {
    char magic[4];
    int32_t layer;
    int64_t round;
    uint64_t tuner_bytes;              /* 0: the layer has not begun */
    char options[EK_SHA256_HEX_BYTES]; /* of everything that the result depends on */
    char padding[7];
} head;

static_assert(sizeof(head) == 96, "checkpoint head");

typedef struct piece {
    void *data;
    size_t bytes;
} piece;

#define N_PIECES 6

/* Everything but the tuner that a run changes. */
static void pieces_of(const ek_cli_calibration *c, piece out[N_PIECES])
{
    const ek_cli_calibrate_gates *g = &c->gates;
    const size_t n_layers = (size_t)g->n_layers, n_rows = n_layers * (size_t)g->n_experts;
    out[0] = (piece){g->weight, n_rows * (size_t)g->d_model * sizeof(double)};
    out[1] = (piece){g->bias, n_rows * sizeof(double)};
    out[2] = (piece){g->uses_bias, n_layers * sizeof(bool)};
    out[3] = (piece){c->layers, n_layers * sizeof *c->layers};
    out[4] = (piece){c->variance_before, n_rows * sizeof(double)};
    out[5] = (piece){c->variance_after, n_rows * sizeof(double)};
}

static size_t pieces_bytes(const ek_cli_calibration *c)
{
    piece pieces[N_PIECES];
    size_t bytes = 0;
    pieces_of(c, pieces);
    for (int i = 0; i < N_PIECES; i++)
        bytes += pieces[i].bytes;
    return bytes;
}

/* A digest of what a result depends on: model, gates to begin with, states or texts, options. */
static ek_status digest_options(const ek_cli_calibration *c, char out_hex[EK_SHA256_HEX_BYTES])
{
    const ek_cli_calibrate_options *o = c->options;
    const ek_cli_calibrate_gates *g = &c->gates;
    const size_t n_rows = (size_t)g->n_layers * (size_t)g->n_experts;
    ek_sys_sha256 hash;
    const ek_status status = ek_sys_sha256_open(&hash);
    if (status < 0) return status;
    const ek_tune_params *t = &o->tune;
    char text[512];
    const int n = snprintf(
        text, sizeof text,
        EK_VERSION " %s %zu %d %.17g %llu %lld %d %d %d %.17g %.17g %.17g %.17g %.17g %.17g %d "
                   "%.17g %.17g %lld %lld %lld",
        c->fingerprint, sizeof *c->layers, (int)t->method, t->target, (unsigned long long)t->seed,
        (long long)t->n_steps, t->batch, t->look_steps, t->patience, t->rate, t->balance_weight,
        t->z_weight, t->noise, t->clip, t->decay, t->n_passes, t->bias_rate, o->mend,
        (long long)o->n_tokens, (long long)o->chunk_tokens, (long long)o->n_rounds);
    ek_sys_sha256_add(&hash, text, (size_t)(n > 0 ? n : 0));
    ek_sys_sha256_add(&hash, o->reset, (size_t)o->n_reset * sizeof o->reset[0]);
    ek_sys_sha256_add(&hash, g->found, n_rows * (size_t)g->d_model * sizeof *g->found);
    ek_sys_sha256_add(&hash, g->found_bias, n_rows * sizeof *g->found_bias);
    for (int32_t i = 0; i < c->corpus.n_files; i++)
        ek_sys_sha256_add(&hash, c->corpus.file[i].id,
                          (size_t)c->corpus.file[i].n * sizeof(int32_t));
    if (o->states_path) ek_sys_sha256_add(&hash, c->states_map.bytes.data, c->states_map.bytes.len);
    ek_sys_sha256_close(&hash, out_hex);
    return EK_OK;
}

ek_status ek_cli_calibrate_save(const ek_cli_calibration *c, int32_t layer, const ek_tuner *tuner,
                                ek_err *err)
{
    const char *path = c->options->checkpoint_path;
    if (!path) return EK_OK;
    head h = {.layer = layer,
              .round = c->round,
              .tuner_bytes = tuner ? ek_tune_tuner_state_bytes(tuner) : 0};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    const size_t body = sizeof h + pieces_bytes(c) + h.tuner_bytes;
    uint8_t *bytes = ek_sys_calloc(1, body + EK_SHA256_HEX_BYTES);
    ek_status status = bytes ? digest_options(c, h.options) : EK_ENOMEM;
    if (status >= 0) {
        piece pieces[N_PIECES];
        size_t at = sizeof h;
        memcpy(bytes, &h, sizeof h);
        pieces_of(c, pieces);
        for (int i = 0; i < N_PIECES; i++) {
            memcpy(bytes + at, pieces[i].data, pieces[i].bytes);
            at += pieces[i].bytes;
        }
        if (tuner) ek_tune_tuner_save(tuner, bytes + at);
        status = ek_sys_sha256_of(bytes, body, (char *)bytes + body);
    }
    if (status >= 0)
        status = ek_sys_file_write(path, (ek_span){bytes, body + EK_SHA256_HEX_BYTES}, err);
    else
        ek_err_set(err, status, "%s: no memory for a checkpoint", path);
    ek_sys_free(bytes);
    return status;
}

static ek_status check(const ek_cli_calibration *c, ek_str bytes, head *out_head, ek_err *err)
{
    const char *path = c->options->checkpoint_path;
    const size_t least = sizeof *out_head + pieces_bytes(c) + EK_SHA256_HEX_BYTES;
    char digest[EK_SHA256_HEX_BYTES], options[EK_SHA256_HEX_BYTES];
    if (bytes.len < sizeof *out_head + EK_SHA256_HEX_BYTES ||
        memcmp(bytes.data, MAGIC, sizeof MAGIC - 1) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: is no checkpoint of calibrate", path);
    const size_t body = bytes.len - EK_SHA256_HEX_BYTES;
    ek_status status = ek_sys_sha256_of(bytes.data, body, digest);
    if (status >= 0) status = digest_options(c, options);
    if (status < 0) return ek_err_set(err, status, "%s: no memory to check it", path);
    if (memcmp(digest, bytes.data + body, sizeof digest) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: is damaged; remove it to begin again", path);
    memcpy(out_head, bytes.data, sizeof *out_head);
    if (memcmp(options, out_head->options, sizeof options) != 0)
        return ek_err_set(err, EK_EINVAL,
                          "%s: is of another run (model, texts or options); name another file, or "
                          "remove it to begin again",
                          path);
    if (bytes.len != least + out_head->tuner_bytes || out_head->layer < 0 ||
        out_head->layer > c->gates.n_layers)
        return ek_err_set(err, EK_EFORMAT, "%s: is damaged; remove it to begin again", path);
    return EK_OK;
}

ek_status ek_cli_calibrate_restore(ek_cli_calibration *c, ek_cli_calibrate_saved *out_saved,
                                   ek_err *err)
{
    const char *path = c->options->checkpoint_path;
    *out_saved = (ek_cli_calibrate_saved){0};
    if (!path || !ek_sys_file_exists(path)) return EK_OK;
    ek_str bytes;
    head h;
    ek_status status = ek_sys_file_read(path, (size_t)1 << 34, &bytes, err);
    if (status < 0) return status;
    status = check(c, bytes, &h, err);
    if (status < 0) {
        ek_sys_free((void *)bytes.data);
        return status;
    }
    piece pieces[N_PIECES];
    size_t at = sizeof h;
    pieces_of(c, pieces);
    for (int i = 0; i < N_PIECES; i++) {
        memcpy(pieces[i].data, bytes.data + at, pieces[i].bytes);
        at += pieces[i].bytes;
    }
    c->round = h.round;
    *out_saved = (ek_cli_calibrate_saved){
        .bytes = bytes,
        .layer = h.layer,
        .tuner = h.tuner_bytes > 0 ? (const uint8_t *)bytes.data + at : NULL,
        .tuner_bytes = h.tuner_bytes,
    };
    return EK_OK;
}
