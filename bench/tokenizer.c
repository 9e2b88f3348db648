/*
 * build/bench/tokenizer [--model FILE] [TEXT...]: how fast text becomes tokens and tokens become
 * text.
 *
 * FILE is any GGUF file with a vocabulary (default: the bundled model). Without TEXT files three
 * texts of a megabyte are used: English (the licences that Debian installs), Chinese and C code
 * (both made up from a fixed seed). Figures are megabytes of text per second of processor time on
 * one core, medians of N_RUNS with the slowest and fastest, and the time to build the tokenizer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

enum { N_RUNS = 11, TEXT_BYTES = 1 << 20 };

static const char *const licences[] = {"GPL-3",   "GPL-2",    "LGPL-2.1", "Apache-2.0",
                                       "MPL-2.0", "GFDL-1.3", "Artistic"};

typedef struct text {
    const char *name;
    char *data; /* owned, heap */
    size_t len;
} text;

static void text_add(text *t, const char *bytes, size_t n)
{
    size_t room = TEXT_BYTES - t->len;
    if (n > room) n = room;
    memcpy(t->data + t->len, bytes, n);
    t->len += n;
}

static bool text_full(const text *t)
{
    return t->len == TEXT_BYTES;
}

/* The licences over and over until the text is full; false, and says so, when none is there. */
static bool make_english(text *t)
{
    while (!text_full(t)) {
        size_t before = t->len;
        for (size_t i = 0; i < EK_COUNT_OF(licences); i++) {
            char path[256];
            ek_str file;
            snprintf(path, sizeof path, "/usr/share/common-licenses/%s", licences[i]);
            if (ek_sys_file_read(path, TEXT_BYTES, &file, NULL) != EK_OK) continue;
            text_add(t, file.data, file.len);
            ek_sys_free((void *)(uintptr_t)file.data);
        }
        if (t->len == before) break;
    }
    return text_full(t);
}

static void make_chinese(text *t, ek_rng *rng)
{
    static const char *const words[] = {"我们", "的",   "快递", "已经", "到",   "了",   "北京",
                                        "请",   "查看", "订单", "物流", "信息", "是",   "不",
                                        "在",   "这",   "商品", "退货", "客服", "您好", "今天",
                                        "发货", "地址", "电话", "可以", "什么", "时候", "收到",
                                        "价格", "推荐", "餐馆", "用餐", "评分", "景点", "附近"};
    static const char *const marks[] = {"，", "。", "？", "！", "：", "3", "128元", "\n"};
    while (!text_full(t)) {
        const char *word = ek_rng_below(rng, 6) == 0 ? marks[ek_rng_below(rng, EK_COUNT_OF(marks))]
                                                     : words[ek_rng_below(rng, EK_COUNT_OF(words))];
        text_add(t, word, strlen(word));
    }
}

static void make_code(text *t, ek_rng *rng)
{
    static const char *const names[] = {"count", "buffer", "next", "node",   "i",    "offset",
                                        "len",   "value",  "list", "status", "data", "ctx"};
    static const char *const lines[] = {"    if (%s->%s == NULL) return -1;\n",
                                        "        %s[%s] += 0x3f;\n",
                                        "    for (int %s = 0; %s < 16; %s++) {\n",
                                        "static int %s_%s(struct %s *p)\n{\n",
                                        "    return %s(%s, sizeof *%s);\n}\n\n",
                                        "/* %s is %s until %s. */\n",
                                        "#define %s_%s_%s 1024\n"};
    while (!text_full(t)) {
        char line[160];
        const char *word[3];
        for (int i = 0; i < 3; i++)
            word[i] = names[ek_rng_below(rng, EK_COUNT_OF(names))];
        const char *format = lines[ek_rng_below(rng, EK_COUNT_OF(lines))];
        int n = 0;
        size_t len = 0;
        for (const char *c = format; *c && len + 16 < sizeof line; c++) {
            if (c[0] == '%' && c[1] == 's') {
                len += (size_t)snprintf(line + len, sizeof line - len, "%s", word[n++]);
                c++;
            } else {
                line[len++] = *c;
            }
        }
        text_add(t, line, len);
    }
}

static void measure(const ek_tokenizer *tokenizer, const text *t)
{
    int64_t max = ek_model_tokenizer_ids_max(tokenizer, t->len);
    size_t scratch_bytes = ek_model_tokenizer_scratch_bytes(tokenizer, t->len);
    ek_sys_region region;
    if (ek_sys_region_open((size_t)max * sizeof(int32_t) + scratch_bytes + 64, 0, &region) !=
        EK_OK) {
        printf("%-10s no memory\n", t->name);
        return;
    }
    ek_arena arena = ek_sys_region_arena(&region);
    int32_t *ids = ek_new(&arena, int32_t, max);
    ek_bench_samples encode = {0};
    ek_bench_samples decode = {0};
    int64_t n = 0;
    size_t bytes = 0;
    for (int run = 0; run < N_RUNS; run++) {
        int64_t start = ek_sys_thread_cpu_ns();
        if (ek_model_tokenizer_encode(tokenizer, (ek_str){t->data, t->len}, false, arena, ids, max,
                                      &n) != EK_OK)
            break;
        int64_t middle = ek_sys_thread_cpu_ns();
        bytes = 0;
        for (int64_t i = 0; i < n; i++) {
            char piece[EK_TOKENIZER_PIECE_MAX];
            bytes += ek_model_tokenizer_piece(tokenizer, ids[i], false, piece);
        }
        int64_t end = ek_sys_thread_cpu_ns();
        ek_bench_add(&encode, (double)t->len * 1e3 / (double)(middle - start));
        ek_bench_add(&decode, (double)bytes * 1e3 / (double)(end - middle));
    }
    printf("%-10s %9zu bytes %8lld tokens  encode %6.1f MB/s (%.1f..%.1f)  decode %6.1f MB/s\n",
           t->name, t->len, (long long)n, ek_bench_quantile(&encode, 0.5),
           ek_bench_quantile(&encode, 0.0), ek_bench_quantile(&encode, 1.0),
           ek_bench_quantile(&decode, 0.5));
    ek_sys_region_close(&region);
}

/* Build it N_RUNS times; the last one stays. */
static ek_tokenizer *build(const ek_gguf *gguf, ek_arena arena, ek_err *err)
{
    ek_bench_samples ms = {0};
    ek_tokenizer *tokenizer = NULL;
    for (int run = 0; run < N_RUNS; run++) {
        ek_arena perm = arena;
        ek_model_tokenizer_destroy(tokenizer);
        tokenizer = NULL;
        int64_t start = ek_sys_thread_cpu_ns();
        if (ek_model_tokenizer_create(gguf, &perm, &tokenizer, err) != EK_OK) return NULL;
        ek_bench_add(&ms, (double)(ek_sys_thread_cpu_ns() - start) / 1e6);
    }
    printf("vocabulary: %s, %d tokens; built in %.1f ms (%.1f..%.1f)\n",
           ek_model_tokenizer_kind(tokenizer), ek_model_tokenizer_vocab(tokenizer),
           ek_bench_quantile(&ms, 0.5), ek_bench_quantile(&ms, 0.0), ek_bench_quantile(&ms, 1.0));
    return tokenizer;
}

static void run_texts(const ek_tokenizer *tokenizer, char **paths, int n_paths)
{
    for (int i = 0; i < n_paths; i++) {
        ek_err err = {0};
        ek_str file;
        if (ek_sys_file_read(paths[i], (size_t)1 << 30, &file, &err) != EK_OK) {
            printf("%s\n", err.text);
            continue;
        }
        measure(tokenizer, &(text){paths[i], (char *)(uintptr_t)file.data, file.len});
        ek_sys_free((void *)(uintptr_t)file.data);
    }
    if (n_paths > 0) return;
    ek_rng rng;
    ek_rng_init(&rng, 1);
    char *data = ek_sys_calloc(TEXT_BYTES, 1);
    if (!data) return;
    text english = {"English", data, 0};
    if (make_english(&english))
        measure(tokenizer, &english);
    else
        printf("English    skipped: /usr/share/common-licenses has none of the licences\n");
    text chinese = {"Chinese", data, 0};
    make_chinese(&chinese, &rng);
    measure(tokenizer, &chinese);
    text code = {"code", data, 0};
    make_code(&code, &rng);
    measure(tokenizer, &code);
    ek_sys_free(data);
}

static int run(const char *model, char **paths, int n_paths, ek_err *err)
{
    ek_sys_map map;
    ek_sys_region region = {0};
    ek_gguf *gguf;
    int rc = 1;
    if (ek_sys_map_open(model, &map, err) != EK_OK) return 1;
    if (ek_sys_region_open(ek_model_gguf_perm_bytes_max(map.bytes.len) + ((size_t)1 << 31), 0,
                           &region) != EK_OK) {
        (void)ek_err_set(err, EK_ENOMEM, "no address space for %s", model);
        goto close_map;
    }
    ek_arena arena = ek_sys_region_arena(&region);
    if (ek_model_gguf_parse(&map.bytes, 1, &arena, &gguf, err) != EK_OK) goto close_region;
    ek_bench_print_machine();
    ek_tokenizer *tokenizer = build(gguf, arena, err);
    if (!tokenizer) goto close_region;
    run_texts(tokenizer, paths, n_paths);
    ek_model_tokenizer_destroy(tokenizer);
    rc = 0;
close_region:
    ek_sys_region_close(&region);
close_map:
    ek_sys_map_close(&map);
    return rc;
}

int main(int argc, char **argv)
{
    const char *model = "models/evenkeel-demo.gguf";
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--model") == 0) {
        model = argv[2];
        first = 3;
    }
    ek_err err = {0};
    int rc = run(model, argv + first, argc - first, &err);
    if (rc != 0) fprintf(stderr, "tokenizer: %s: %s\n", model, err.text);
    return rc;
}
