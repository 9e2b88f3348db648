#include "parsed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/fixtures.h"

static parsed parse(ek_span file)
{
    parsed p = {.file = file};
    ek_arena perm = ek_fixture_arena(ek_model_gguf_perm_bytes_max(file.len));
    p.gguf_mem = perm.beg;
    p.status = ek_model_gguf_parse(&p.file, 1, &perm, &p.gguf, &p.err);
    return p;
}

static void load(parsed *p)
{
    if (p->status != EK_OK) return;
    ek_arena perm = ek_fixture_arena(ek_model_perm_bytes_max(p->gguf));
    p->desc_mem = perm.beg;
    p->status = ek_model_load(p->gguf, &perm, &p->model, &p->err);
}

parsed parsed_try(ek_span file)
{
    parsed p = parse(file);
    load(&p);
    return p;
}

static ek_span finish(ek_builder *b)
{
    ek_span file = ek_builder_finish(b);
    ek_builder_destroy(b);
    return file;
}

parsed parsed_open(ek_builder *b)
{
    parsed p = parse(finish(b));
    if (p.status != EK_OK) fail_msg("parse: %s", p.err.text);
    return p;
}

parsed parsed_load(ek_builder *b)
{
    parsed p = parsed_try(finish(b));
    if (p.status != EK_OK) fail_msg("parse and load: %s", p.err.text);
    return p;
}

void parsed_close(parsed *p)
{
    ek_fixture_arena_free(p->desc_mem);
    ek_fixture_arena_free(p->gguf_mem);
    ek_fixture_free(p->file);
    *p = (parsed){0};
}

static void expect(const parsed *p, ek_status status, const char *text)
{
    if (p->status != status || !strstr(p->err.text, text))
        fail_msg("expected %s with \"%s\", got %s with \"%s\"", ek_status_name(status), text,
                 ek_status_name(p->status), p->err.text);
    assert_int_equal(p->err.status, status);
}

void expect_parse_error(ek_builder *b, ek_status status, const char *text)
{
    parsed p = parse(finish(b));
    expect(&p, status, text);
    assert_null(p.gguf);
    parsed_close(&p);
}

void expect_load_error(ek_builder *b, ek_status status, const char *text)
{
    parsed p = parsed_open(b);
    load(&p);
    expect(&p, status, text);
    assert_null(p.model);
    parsed_close(&p);
}
