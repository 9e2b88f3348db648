#include "cli/lab_prompts.h"

#include <jansson.h>
#include <string.h>

#include "cli/text.h"
#include "cli/tokens.h"
#include "lab/texts.h"
#include "sys/file.h"
#include "sys/mem.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define TEXTS_MAX      400  /* of one file: more would not make traffic more mixed */
#define TEXT_BYTES_MAX 2000 /* of one text: prompts are shorter */

/* ---- rows ---- */

static bool make_room(void **data, int64_t needed, int64_t *room, size_t size)
{
    if (needed <= *room) return true;
    int64_t more = *room * 2 > needed ? *room * 2 : needed;
    void *grown = ek_sys_realloc(*data, (size_t)more * size);
    if (!grown) return false;
    *data = grown;
    *room = more;
    return true;
}

static ek_status add_ids(ek_cli_lab_texts *t, const int32_t *ids, int64_t n)
{
    if (!make_room((void **)&t->id, t->n + n, &t->room, sizeof *t->id)) return EK_ENOMEM;
    memcpy(t->id + t->n, ids, (size_t)n * sizeof *ids);
    t->n += n;
    return EK_OK;
}

/* At a character's border: a byte that continues one is not the first to be left out. */
static ek_str shorten(ek_str text)
{
    if (text.len <= TEXT_BYTES_MAX) return text;
    size_t n = TEXT_BYTES_MAX;
    while (n > 0 && ((unsigned char)text.data[n] & 0xC0) == 0x80)
        n--;
    return (ek_str){text.data, n};
}

static ek_status add_text(const ek_tokenizer *tokenizer, ek_str text, ek_cli_lab_texts *t,
                          ek_err *err)
{
    ek_cli_tokens tokens = {0};
    int64_t beg_room = t->texts_room;
    ek_status status = ek_cli_tokens_encode(tokenizer, shorten(text), false, false, &tokens, err);
    if (status < 0) return status;
    if (tokens.n > 0) {
        if (!make_room((void **)&t->beg, t->n_texts + 1, &beg_room, sizeof *t->beg))
            status = EK_ENOMEM;
        t->texts_room = (int32_t)beg_room;
        if (status == EK_OK) t->beg[t->n_texts++] = t->n;
        if (status == EK_OK) status = add_ids(t, tokens.id, tokens.n);
    }
    ek_cli_tokens_free(&tokens);
    return status < 0 ? ek_err_set(err, status, "no memory for prompts") : EK_OK;
}

/* ---- files ---- */

static bool find_kind(const json_t *line, ek_lab_kind *out_kind)
{
    const char *lang = json_string_value(json_object_get(line, "lang"));
    const char *domain = json_string_value(json_object_get(line, "domain"));
    if (!lang) return false;
    if (domain && strcmp(domain, "logistics") == 0)
        *out_kind = EK_LAB_LOGISTICS;
    else if (strcmp(lang, "zh") == 0)
        *out_kind = EK_LAB_CHINESE;
    else if (strcmp(lang, "en") == 0)
        *out_kind = EK_LAB_ENGLISH;
    else if (strcmp(lang, "code") == 0)
        *out_kind = EK_LAB_CODE;
    else
        return false;
    return true;
}

static ek_status append(const json_t *string, ek_cli_text *text)
{
    const char *data = json_string_value(string);
    if (!data) return EK_OK;
    ek_status status = EK_OK;
    if (text->len > 0) status = ek_cli_text_append(text, EK_STR("\n"), FILE_BYTES_MAX);
    if (status == EK_OK) status = ek_cli_text_append(text, ek_str_from(data), FILE_BYTES_MAX);
    return status;
}

/* "text", or all of "turns", or the contents of "messages". */
static ek_status collect(const json_t *line, ek_cli_text *text)
{
    ek_status status = append(json_object_get(line, "text"), text);
    const json_t *turns = json_object_get(line, "turns");
    const json_t *messages = json_object_get(line, "messages");
    for (size_t i = 0; i < json_array_size(turns) && status == EK_OK; i++)
        status = append(json_array_get(turns, i), text);
    for (size_t i = 0; i < json_array_size(messages) && status == EK_OK; i++)
        status = append(json_object_get(json_array_get(messages, i), "content"), text);
    return status;
}

static ek_status take_line(const ek_tokenizer *tokenizer, ek_str text, ek_cli_lab_prompts *prompts,
                           ek_err *err)
{
    json_t *line = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    ek_cli_text words = {0};
    ek_lab_kind kind = EK_LAB_CHINESE;
    ek_status status = EK_OK;
    if (!line || !find_kind(line, &kind))
        status = ek_err_set(err, EK_EFORMAT, "no JSON object with a \"lang\" of zh, en or code");
    if (status == EK_OK && collect(line, &words) < 0)
        status = ek_err_set(err, EK_ENOMEM, "no memory for prompts");
    if (status == EK_OK && words.len == 0)
        status = ek_err_set(err, EK_EFORMAT, "neither \"text\" nor \"turns\" nor \"messages\"");
    if (status == EK_OK)
        status = add_text(tokenizer, ek_cli_text_str(&words), &prompts->kind[kind], err);
    ek_cli_text_free(&words);
    json_decref(line);
    return status;
}

static ek_status take_file(const ek_tokenizer *tokenizer, const char *path,
                           ek_cli_lab_prompts *prompts, ek_err *err)
{
    ek_str text;
    ek_status status = ek_sys_file_read(path, FILE_BYTES_MAX, &text, err);
    if (status < 0) return status;
    size_t at = 0;
    for (int32_t n = 1; at < text.len && n <= TEXTS_MAX && status == EK_OK; n++) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        const size_t len = end ? (size_t)(end - text.data) - at : text.len - at;
        if (len > 0) status = take_line(tokenizer, (ek_str){text.data + at, len}, prompts, err);
        if (status < 0) ek_err_prefix(err, "%s:%d", path, (int)n);
        at += len + 1;
    }
    ek_sys_free((void *)text.data);
    return status;
}

/* ---- all of it ---- */

/* Prompts that begin near the end go on at the beginning. */
static ek_status close_ring(ek_cli_lab_texts *t, int32_t n_prompt)
{
    const int64_t n = t->n;
    for (int64_t i = 0; i < n_prompt; i++) {
        const int32_t id = t->id[i % n];
        const ek_status status = add_ids(t, &id, 1);
        if (status < 0) return status;
    }
    return EK_OK;
}

ek_status ek_cli_lab_prompts_open(const ek_tokenizer *tokenizer, const char *const *paths,
                                  int32_t n_paths, int32_t n_prompt,
                                  ek_cli_lab_prompts *out_prompts, ek_err *err)
{
    ek_cli_lab_prompts p = {.n_prompt = n_prompt, .bundled = n_paths == 0};
    ek_status status = EK_OK;
    for (int32_t i = 0; i < n_paths && status == EK_OK; i++)
        status = take_file(tokenizer, paths[i], &p, err);
    for (int k = 0; k < EK_LAB_N_KINDS && status == EK_OK; k++) {
        const bool none = p.kind[k].n_texts == 0;
        for (int i = 0; none && ek_lab_texts[k][i] && status == EK_OK; i++)
            status = add_text(tokenizer, ek_str_from(ek_lab_texts[k][i]), &p.kind[k], err);
        if (status == EK_OK && close_ring(&p.kind[k], n_prompt) < 0)
            status = ek_err_set(err, EK_ENOMEM, "no memory for prompts");
    }
    if (status == EK_OK)
        *out_prompts = p;
    else
        ek_cli_lab_prompts_close(&p);
    return status;
}

void ek_cli_lab_prompts_close(ek_cli_lab_prompts *prompts)
{
    for (int k = 0; k < EK_LAB_N_KINDS; k++) {
        ek_sys_free(prompts->kind[k].id);
        ek_sys_free(prompts->kind[k].beg);
    }
    *prompts = (ek_cli_lab_prompts){0};
}

const int32_t *ek_cli_lab_prompt(const ek_cli_lab_prompts *prompts, ek_lab_kind kind, uint64_t draw)
{
    const ek_cli_lab_texts *t = &prompts->kind[kind];
    return t->id + t->beg[draw % (uint64_t)t->n_texts];
}
