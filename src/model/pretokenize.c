#include "model/pretokenize.h"

#include <stdio.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/assert.h"

static const ek_pretokenize_rule *find_rule(ek_str name)
{
    int32_t n;
    const ek_pretokenize_rule *rules = ek_model_pretokenize_rules(&n);
    for (int32_t i = 0; i < n; i++)
        if (ek_str_eqz(name, rules[i].name)) return &rules[i];
    return NULL;
}

static ek_status unknown_name(ek_str name, ek_err *err)
{
    int32_t n;
    const ek_pretokenize_rule *rules = ek_model_pretokenize_rules(&n);
    char known[EK_ERR_TEXT_MAX] = "";
    size_t at = 0;
    for (int32_t i = 0; i < n && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", rules[i].name);
    return ek_err_set(err, EK_EUNSUPPORTED,
                      "tokenizer.ggml.pre is \"%.*s\"; known pre-tokenizers: %s", EK_STR_ARG(name),
                      known);
}

static ek_status compile_failed(const ek_pretokenize_rule *rule, int step, int code, ek_err *err)
{
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(code, text, sizeof text);
    bool memory = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED;
    return ek_err_set(err, memory ? EK_ENOMEM : EK_EINTERNAL,
                      "pattern %d of pre-tokenizer \"%s\" does not compile: %s", step, rule->name,
                      (const char *)text);
}

ek_status ek_model_pretokenizer_init(ek_pretokenizer *pre, ek_str name, bool allow_jit, ek_err *err)
{
    *pre = (ek_pretokenizer){.rule = find_rule(name)};
    if (!pre->rule) return unknown_name(name, err);
    for (int step = 0; pre->rule->patterns[step]; step++) {
        ek_assert(step < EK_PRETOKENIZE_STEPS_MAX);
        int code = 0;
        PCRE2_SIZE offset = 0;
        pre->code[step] =
            pcre2_compile((PCRE2_SPTR)pre->rule->patterns[step], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
        if (!pre->code[step]) {
            ek_model_pretokenizer_fini(pre);
            return compile_failed(pre->rule, step, code, err);
        }
        pre->n_steps = step + 1;
        /* Refused where memory may not be both writable and executable: then it is interpreted. */
        pre->jit[step] = allow_jit && pcre2_jit_compile(pre->code[step], PCRE2_JIT_COMPLETE) == 0;
    }
    return EK_OK;
}

void ek_model_pretokenizer_fini(ek_pretokenizer *pre)
{
    for (int step = 0; step < EK_PRETOKENIZE_STEPS_MAX; step++) {
        pcre2_code_free(pre->code[step]);
        pre->code[step] = NULL;
    }
    pre->n_steps = 0;
}

ek_status ek_model_pretokenize_open(ek_pretokenize_cursor *cursor, const ek_pretokenizer *pre)
{
    *cursor = (ek_pretokenize_cursor){.pre = pre, .depth = -1};
    cursor->match_data = pcre2_match_data_create(1, NULL);
    return cursor->match_data ? EK_OK : EK_ENOMEM;
}

void ek_model_pretokenize_close(ek_pretokenize_cursor *cursor)
{
    pcre2_match_data_free(cursor->match_data);
    cursor->match_data = NULL;
}

static void enter(ek_pretokenize_cursor *cursor, int32_t depth, const char *beg, const char *end)
{
    cursor->level[depth] = (ek_pretokenize_level){.beg = beg, .end = end, .pos = beg};
    cursor->depth = depth;
}

void ek_model_pretokenize_text(ek_pretokenize_cursor *cursor, ek_str text)
{
    if (text.len == 0)
        cursor->depth = -1;
    else
        enter(cursor, 0, text.data, text.data + text.len);
}

/* The subject is the piece, not the whole text: its borders are what `\z` and `(?!...)` see. */
static ek_status search(ek_pretokenize_cursor *cursor, ek_pretokenize_level *level)
{
    const ek_pretokenizer *pre = cursor->pre;
    const pcre2_code *code = pre->code[cursor->depth];
    PCRE2_SPTR subject = (PCRE2_SPTR)level->beg;
    PCRE2_SIZE len = (PCRE2_SIZE)(level->end - level->beg);
    PCRE2_SIZE start = (PCRE2_SIZE)(level->pos - level->beg);
    pcre2_match_data *data = cursor->match_data;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pre->jit[cursor->depth]) rc = pcre2_jit_match(code, subject, len, start, 0, data, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, subject, len, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, NULL);
    if (rc == PCRE2_ERROR_NOMATCH) {
        level->match = level->match_end = level->end;
        return EK_OK;
    }
    if (rc < 0) return EK_ENOMEM; /* match, heap or depth limit: nothing else is left to go wrong */
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(data);
    level->match = level->beg + place[0];
    level->match_end = level->beg + place[1];
    ek_assert(level->match_end > level->match); /* no pattern of ours matches nothing */
    return EK_OK;
}

ek_status ek_model_pretokenize_next(ek_pretokenize_cursor *cursor, ek_str *out_piece)
{
    while (cursor->depth >= 0) {
        ek_pretokenize_level *level = &cursor->level[cursor->depth];
        if (level->pos == level->end) {
            cursor->depth--;
            continue;
        }
        if (!level->match_end) {
            ek_status status = search(cursor, level);
            if (status != EK_OK) return status;
        }
        const char *beg = level->pos;
        if (beg < level->match) {
            level->pos = level->match; /* what lies before the match is a piece of its own */
        } else {
            level->pos = level->match_end;
            level->match_end = NULL;
        }
        if (cursor->depth + 1 == cursor->pre->n_steps) {
            *out_piece = (ek_str){beg, (size_t)(level->pos - beg)};
            return EK_OK;
        }
        enter(cursor, cursor->depth + 1, beg, level->pos);
    }
    return EK_END;
}
