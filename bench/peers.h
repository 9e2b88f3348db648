/*
 * What other engines reached on the same machine, from a CSV file that whoever measured them wrote:
 *
 *     name,batch,phase,tokens/s
 *     other,512,prefill,75.3
 *     other,4,decode,36.8
 *
 * The header may be left out; empty lines and lines that begin with # are passed over. Several
 * lines of the same name, batch and phase are measurements of the same thing: their median counts.
 * Whatever else is there is a mistake, since a line that is left out in silence looks like a peer
 * that was never measured. Pure.
 */
#ifndef EK_BENCH_PEERS_H
#define EK_BENCH_PEERS_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "bench.h"

#define EK_BENCH_PREFILL        512 /* tokens of the prompt that is prefilled */
#define EK_BENCH_PEERS_MAX      16
#define EK_BENCH_PEER_NAME_MAX  48 /* bytes, NUL included */
#define EK_BENCH_PEER_LINES_MAX 100000

/** What is measured: the prefill of one prompt, then decode at each batch size. */
enum { EK_BENCH_TEST_PREFILL, EK_BENCH_TEST_DECODE, EK_BENCH_TESTS = 5 };
extern const int32_t ek_bench_test_batch[EK_BENCH_TESTS];    /* sequences that a step serves */
extern const char *const ek_bench_test_name[EK_BENCH_TESTS]; /* "prefill512", "1", "4", ... */

typedef struct ek_bench_peer {
    char name[EK_BENCH_PEER_NAME_MAX];
    ek_bench_samples rate[EK_BENCH_TESTS]; /* tokens/s; empty: not measured */
} ek_bench_peer;

typedef struct ek_bench_peers {
    ek_bench_peer peer[EK_BENCH_PEERS_MAX]; /* in the order in which the file names them first */
    int32_t n;
} ek_bench_peers;

/**
 * @param text the file's content; @param path of it, for the error text
 * @param out_peers zero-initialised; with anything but EK_OK its content means nothing
 * @return EK_OK; EK_EFORMAT, the text has path, line and column; EK_ERANGE too many peers or lines
 */
EK_MUST ek_status ek_bench_peers_parse(ek_str text, const char *path, ek_bench_peers *out_peers,
                                       ek_err *err);

#endif
