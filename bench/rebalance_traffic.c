#include "rebalance_traffic.h"

#include <stdio.h>
#include <string.h>

#include "base/attr.h"
#include "sys/mem.h"

/*
 * A domain: whole files, or those sequences of the set's one file that `index` or `sequences`
 * names.
 */
typedef struct domain_row {
    const char *name;
    const char *file;     /* "law.mrt" */
    const char *prefix;   /* of the data set's name in index.tsv; NULL: not by that */
    int32_t sequences[3]; /* numbers from 1, ended by 0; none: not by that */
} domain_row;

typedef struct set_row {
    const char *name;
    const char *index; /* file that names each sequence's source, or NULL */
    int32_t batch_tokens, n_streams;
    int64_t expert_weights; /* three matrices */
    int32_t weight_bits;    /* as the model was recorded */
    domain_row domains[EK_BENCH_DOMAINS_MAX];
} set_row;

/*
 * Prompts of dsv2lite are read whole, one after the other; the others are decoded, many at once. Of
 * dsv4flash there are so few tokens that a batch is 128.
 */
static const set_row rows[] = {
    {"dsv2lite-esft",
     NULL,
     1024,
     1,
     INT64_C(3) * 2048 * 1408,
     16,
     {{"intent", "intent.mrt", NULL, {0}},
      {"law", "law.mrt", NULL, {0}},
      {"summary", "summary.mrt", NULL, {0}},
      {"translation", "translation.mrt", NULL, {0}}}},
    {"gptoss20b-fingerprint",
     "decode_mix.index.tsv",
     1024,
     64,
     INT64_C(3) * 2880 * 2880,
     4,
     {{"gpqa", "decode_mix.mrt", "gpqa", {0}}, {"mmlu", "decode_mix.mrt", "mmlu", {0}}}},
    {"dsv4flash-reaploop",
     NULL,
     128,
     32,
     INT64_C(3) * 4096 * 2048,
     2,
     {{"coffee", "decode_full.mrt", NULL, {1, 2}},
      {"json", "decode_full.mrt", NULL, {3, 6}},
      {"python", "decode_full.mrt", NULL, {4, 5}}}},
};

const int32_t ek_bench_n_sets = (int32_t)EK_COUNT_OF(rows);

static bool fail(ek_err *err, const char *path, const char *what)
{
    (void)ek_err_set(err, EK_EFORMAT, "%s: %s", path, what);
    return false;
}

/* The data set's name, the second field of line `line`, begins with prefix. */
static bool index_says(ek_str index, int32_t line, const char *prefix)
{
    ek_str rest = index;
    for (int32_t i = 0; i < line && rest.len > 0; i++) {
        ptrdiff_t end = ek_str_find(rest, EK_STR("\n"));
        if (end < 0) return false;
        rest = (ek_str){rest.data + end + 1, rest.len - (size_t)end - 1};
    }
    ptrdiff_t tab = ek_str_find(rest, EK_STR("\t"));
    if (tab < 0) return false;
    return ek_str_starts((ek_str){rest.data + tab + 1, rest.len - (size_t)tab - 1},
                         ek_str_from(prefix));
}

static bool is_in(const domain_row *row, ek_str index, int32_t sequence)
{
    if (row->prefix) return index_says(index, sequence + 1, row->prefix); /* after its head */
    if (row->sequences[0] == 0) return true;
    for (int32_t i = 0; row->sequences[i] != 0; i++)
        if (row->sequences[i] == sequence + 1) return true;
    return false;
}

/* @return the file's recording, opened once; NULL and err */
static const ek_mrt *file_of(const char *dir, const set_row *row, int32_t domain, ek_bench_set *set,
                             ek_err *err)
{
    for (int32_t d = 0; d < domain; d++)
        if (strcmp(row->domains[d].file, row->domains[domain].file) == 0) return set->domain[d].mrt;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", dir, row->name, row->domains[domain].file);
    int32_t i = set->n_files;
    if (ek_sys_map_open(path, &set->map[i], err) != EK_OK) return NULL;
    set->n_files++;
    if (ek_trace_mrt_open(set->map[i].bytes, path, &set->mrt[i], err) != EK_OK) return NULL;
    bool same = i == 0 || (set->mrt[i].n_layers == set->mrt[0].n_layers &&
                           set->mrt[i].n_experts == set->mrt[0].n_experts);
    if (same) return &set->mrt[i];
    (void)fail(err, path, "not of the same model as the set's first file");
    return NULL;
}

static bool domain_open(const domain_row *row, ek_str index, const ek_mrt *mrt, const char *path,
                        ek_bench_domain *out, ek_err *err)
{
    out->name = row->name;
    out->mrt = mrt;
    int32_t beg = 0;
    for (int32_t i = 0; i < mrt->n_sequences; i++) {
        int32_t end = beg + ek_trace_mrt_length(mrt, i);
        if (end > beg && is_in(row, index, i)) {
            if (out->n_sequences == EK_BENCH_SEQUENCES_MAX)
                return fail(err, path, "more sequences in a domain than expected");
            out->sequence[out->n_sequences++] = (ek_bench_sequence){beg, end};
        }
        beg = end;
    }
    return out->n_sequences > 0 || fail(err, path, "a domain without sequences");
}

static bool totals_count(ek_bench_set *set)
{
    size_t n_cells = (size_t)set->n_layers * (size_t)set->n_experts;
    set->totals = ek_sys_calloc(n_cells * (size_t)set->n_domains, sizeof *set->totals);
    for (int32_t d = 0; set->totals && d < set->n_domains; d++)
        for (int32_t i = 0; i < set->domain[d].n_sequences; i++)
            ek_trace_mrt_count(set->domain[d].mrt, set->domain[d].sequence[i].beg,
                               set->domain[d].sequence[i].end, set->totals + (size_t)d * n_cells);
    return set->totals != NULL;
}

static bool domains_open(const char *dir, const set_row *row, ek_str index, ek_bench_set *set,
                         ek_err *err)
{
    for (int32_t d = 0; d < EK_BENCH_DOMAINS_MAX && row->domains[d].name; d++) {
        const ek_mrt *mrt = file_of(dir, row, d, set, err);
        if (!mrt) return false;
        if (!domain_open(&row->domains[d], index, mrt, row->domains[d].file, &set->domain[d], err))
            return false;
        set->n_domains++;
    }
    set->n_layers = set->mrt[0].n_layers;
    set->n_experts = set->mrt[0].n_experts;
    set->top_k = set->mrt[0].top_k;
    return totals_count(set) || fail(err, row->name, "no memory");
}

bool ek_bench_set_open(const char *dir, int32_t i, ek_bench_set *out_set, ek_err *err)
{
    const set_row *row = &rows[i];
    ek_str index = {0};
    memset(out_set, 0, sizeof *out_set);
    out_set->name = row->name;
    out_set->batch_tokens = row->batch_tokens;
    out_set->n_streams = row->n_streams;
    out_set->expert_weights = row->expert_weights;
    out_set->expert_bytes = row->expert_weights * row->weight_bits / 8;
    if (row->index) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s/%s", dir, row->name, row->index);
        if (ek_sys_file_read(path, 1 << 20, &index, err) != EK_OK) return false;
    }
    bool good = domains_open(dir, row, index, out_set, err);
    ek_sys_free((void *)(uintptr_t)index.data);
    if (!good) ek_bench_set_close(out_set);
    return good;
}

void ek_bench_set_close(ek_bench_set *set)
{
    for (int32_t i = 0; i < set->n_files; i++)
        ek_sys_map_close(&set->map[i]);
    ek_sys_free(set->totals);
    memset(set, 0, sizeof *set);
}

static ek_bench_sequence draw(const ek_bench_domain *domain, ek_rng *rng)
{
    return domain->sequence[ek_rng_below(rng, (uint64_t)domain->n_sequences)];
}

void ek_bench_reader_start(ek_bench_reader *reader, const ek_bench_set *set, int32_t domain,
                           ek_rng *rng)
{
    *reader = (ek_bench_reader){.set = set, .domain = &set->domain[domain]};
    for (int32_t i = 0; i < set->n_streams; i++) {
        ek_bench_sequence *s = &reader->left[i];
        *s = draw(reader->domain, rng);
        /* Answers that are decoded at the same time are at different places. */
        if (set->n_streams > 1) s->beg += (int32_t)ek_rng_below(rng, (uint64_t)(s->end - s->beg));
    }
}

void ek_bench_reader_batch(ek_bench_reader *reader, ek_rng *rng, int64_t *out_tokens)
{
    const ek_bench_set *set = reader->set;
    memset(out_tokens, 0, (size_t)set->n_layers * (size_t)set->n_experts * sizeof *out_tokens);
    for (int32_t i = 0; i < set->n_streams; i++) {
        ek_bench_sequence *s = &reader->left[i];
        for (int32_t due = set->batch_tokens / set->n_streams; due > 0;) {
            if (s->beg == s->end) *s = draw(reader->domain, rng);
            int32_t n = s->end - s->beg < due ? s->end - s->beg : due;
            ek_trace_mrt_count(reader->domain->mrt, s->beg, s->beg + n, out_tokens);
            s->beg += n;
            due -= n;
        }
    }
}
