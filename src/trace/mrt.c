#include "trace/mrt.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

/* Where the header's fields lie. */
enum {
    AT_VERSION = 4,
    AT_TOKENS = 8,
    AT_SEQUENCES = 12,
    AT_LAYERS = 16,
    AT_EXPERTS = 18,
    AT_TOP_K = 20,
    AT_FIRST_LAYER = 22,
    AT_FLAGS = 24,
    AT_RESERVED = 28,
    HEADER_BYTES = 32,
};

#define VERSION     1u
#define HAS_WEIGHTS 1u
#define TOKENS_MAX  INT32_MAX

static uint32_t load_u16(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static uint32_t load_u32(const uint8_t *at)
{
    return load_u16(at) | load_u16(at + 2) << 16;
}

static ek_status header_check(const uint8_t *h, const char *origin, ek_err *err)
{
    if (memcmp(h, "MRT1", 4) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: offset 0: not an MRT1 file", origin);
    if (load_u32(h + AT_VERSION) != VERSION)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %d: version %" PRIu32 " is not known, %u is",
                          origin, AT_VERSION, load_u32(h + AT_VERSION), VERSION);
    static const struct {
        int32_t at;
        const char *name;
    } long_fields[] = {{AT_TOKENS, "tokens"}, {AT_SEQUENCES, "sequences"}};
    for (size_t i = 0; i < EK_COUNT_OF(long_fields); i++) {
        uint32_t value = load_u32(h + long_fields[i].at);
        if (value > TOKENS_MAX)
            return ek_err_set(err, EK_EFORMAT, "%s: offset %d: %" PRIu32 " %s, at most %" PRId32,
                              origin, long_fields[i].at, value, long_fields[i].name, TOKENS_MAX);
    }
    uint32_t n_experts = load_u16(h + AT_EXPERTS), top_k = load_u16(h + AT_TOP_K);
    if (load_u16(h + AT_LAYERS) == 0)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %d: no layers", origin, AT_LAYERS);
    if (n_experts == 0 || n_experts > EK_MRT_EXPERTS_MAX)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %d: %" PRIu32 " experts, 1 to %d are known",
                          origin, AT_EXPERTS, n_experts, EK_MRT_EXPERTS_MAX);
    if (top_k == 0 || top_k > n_experts)
        return ek_err_set(err, EK_EFORMAT,
                          "%s: offset %d: each token visits %" PRIu32 " of %" PRIu32 " experts",
                          origin, AT_TOP_K, top_k, n_experts);
    if ((load_u32(h + AT_FLAGS) & ~HAS_WEIGHTS) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %d: flags 0x%" PRIx32 ", only 0x%x is known",
                          origin, AT_FLAGS, load_u32(h + AT_FLAGS), HAS_WEIGHTS);
    if (load_u32(h + AT_RESERVED) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %d: has to be 0", origin, AT_RESERVED);
    return EK_OK;
}

/* Header, lengths, ids and weights have to be exactly what there is. */
static ek_status size_check(ek_span bytes, const ek_mrt *m, bool has_weights, const char *origin,
                            ek_err *err)
{
    size_t n_ids, n_lengths, total;
    bool fits = ek_size_mul((size_t)m->n_tokens, (size_t)m->n_layers * (size_t)m->top_k, &n_ids) &&
                ek_size_mul(n_ids, has_weights ? 3 : 1, &total) &&
                ek_size_mul((size_t)m->n_sequences, sizeof(uint32_t), &n_lengths) &&
                ek_size_add(total, n_lengths, &total) && ek_size_add(total, HEADER_BYTES, &total);
    if (!fits || bytes.len < total)
        return ek_err_set(err, EK_ETRUNCATED,
                          "%s: offset %zu: the file ends, but %" PRId32 " tokens of %" PRId32
                          " sequences take %zu bytes",
                          origin, bytes.len, m->n_tokens, m->n_sequences, fits ? total : SIZE_MAX);
    if (bytes.len > total)
        return ek_err_set(err, EK_EFORMAT, "%s: offset %zu: %zu bytes too many", origin, total,
                          bytes.len - total);
    return EK_OK;
}

static ek_status lengths_check(const ek_mrt *m, const char *origin, ek_err *err)
{
    uint64_t sum = 0; /* of at most 2^31 numbers below 2^32 */
    for (int32_t i = 0; i < m->n_sequences; i++) {
        sum += load_u32(m->seq_len + (size_t)i * sizeof(uint32_t));
        if (sum > (uint64_t)m->n_tokens)
            return ek_err_set(err, EK_EFORMAT,
                              "%s: offset %zu: sequences 0 to %" PRId32
                              " have more than the file's %" PRId32 " tokens",
                              origin, HEADER_BYTES + (size_t)i * sizeof(uint32_t), i, m->n_tokens);
    }
    if (sum < (uint64_t)m->n_tokens)
        return ek_err_set(err, EK_EFORMAT,
                          "%s: offset %d: the sequences have %" PRIu64 " tokens, the file %" PRId32,
                          origin, HEADER_BYTES, sum, m->n_tokens);
    return EK_OK;
}

static ek_status id_error(const ek_mrt *m, const uint8_t *id, const uint8_t *file, const char *why,
                          const char *origin, ek_err *err)
{
    int64_t row = (id - m->expert) / m->top_k;
    return ek_err_set(err, EK_EFORMAT,
                      "%s: offset %td: token %" PRId64 ", layer %" PRId64 ": expert %d %s", origin,
                      id - file, row / m->n_layers, row % m->n_layers, *id, why);
}

/* Every id is an expert's, and none comes twice in one choice. */
static ek_status ids_check(const ek_mrt *m, const uint8_t *file, const char *origin, ek_err *err)
{
    int64_t n_rows = (int64_t)m->n_tokens * m->n_layers;
    const uint8_t *row = m->expert;
    for (int64_t r = 0; r < n_rows; r++, row += m->top_k) {
        uint64_t seen[EK_MRT_EXPERTS_MAX / 64] = {0};
        for (int32_t k = 0; k < m->top_k; k++) {
            uint64_t bit = UINT64_C(1) << (row[k] % 64);
            if (row[k] >= m->n_experts)
                return id_error(m, row + k, file, "is none of the layer's", origin, err);
            if (seen[row[k] / 64] & bit)
                return id_error(m, row + k, file, "comes twice", origin, err);
            seen[row[k] / 64] |= bit;
        }
    }
    return EK_OK;
}

ek_status ek_trace_mrt_open(ek_span bytes, const char *origin, ek_mrt *out_mrt, ek_err *err)
{
    if (bytes.len < HEADER_BYTES)
        return ek_err_set(err, EK_ETRUNCATED, "%s: offset %zu: the file ends within its header",
                          origin, bytes.len);
    const uint8_t *h = bytes.data;
    ek_status status = header_check(h, origin, err);
    if (status != EK_OK) return status;
    ek_mrt m = {
        .n_tokens = (int32_t)load_u32(h + AT_TOKENS),
        .n_sequences = (int32_t)load_u32(h + AT_SEQUENCES),
        .n_layers = (int32_t)load_u16(h + AT_LAYERS),
        .n_experts = (int32_t)load_u16(h + AT_EXPERTS),
        .top_k = (int32_t)load_u16(h + AT_TOP_K),
        .first_layer = (int32_t)load_u16(h + AT_FIRST_LAYER),
    };
    bool has_weights = (load_u32(h + AT_FLAGS) & HAS_WEIGHTS) != 0;
    status = size_check(bytes, &m, has_weights, origin, err);
    if (status != EK_OK) return status;
    m.seq_len = h + HEADER_BYTES;
    m.expert = m.seq_len + (size_t)m.n_sequences * sizeof(uint32_t);
    if (has_weights)
        m.weight = m.expert + (size_t)m.n_tokens * (size_t)m.n_layers * (size_t)m.top_k;
    status = lengths_check(&m, origin, err);
    if (status == EK_OK) status = ids_check(&m, h, origin, err);
    if (status == EK_OK) *out_mrt = m;
    return status;
}

int32_t ek_trace_mrt_length(const ek_mrt *mrt, int32_t sequence)
{
    ek_dassert(sequence >= 0 && sequence < mrt->n_sequences);
    return (int32_t)load_u32(mrt->seq_len + (size_t)sequence * sizeof(uint32_t));
}

double ek_trace_mrt_weight(const ek_mrt *mrt, int32_t token, int32_t layer, int32_t choice)
{
    ek_dassert(choice >= 0 && choice < mrt->top_k);
    if (!mrt->weight) return 0.0;
    int64_t at = ((int64_t)token * mrt->n_layers + layer) * mrt->top_k + choice;
    return load_u16(mrt->weight + 2 * at) / EK_MRT_WEIGHT_UNIT;
}

void ek_trace_mrt_count(const ek_mrt *mrt, int32_t beg, int32_t end, int64_t *counts)
{
    ek_assert(beg >= 0 && beg <= end && end <= mrt->n_tokens);
    for (int32_t t = beg; t < end; t++)
        for (int32_t l = 0; l < mrt->n_layers; l++) {
            const uint8_t *expert = ek_trace_mrt_experts(mrt, t, l);
            int64_t *row = counts + (int64_t)l * mrt->n_experts;
            for (int32_t k = 0; k < mrt->top_k; k++)
                row[expert[k]]++;
        }
}
