#include "config/yaml.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "config/schema.h"
#include "config/suggest.h"
#include "config/value.h"

#define ROOT (-1) /* as section: the file's top level */

typedef struct reader {
    yaml_parser_t parser;
    ek_str text;      /* borrowed */
    const char *name; /* of the file */
    ek_arena *perm;
    ek_config *config;
    ek_err *err;
    int32_t version_line; /* lines where things were first seen; 0: not yet */
    int32_t section_line[EK_CONFIG_SECTIONS_MAX];
    int32_t key_line[EK_CONFIG_KEYS_MAX];
} reader;

static int32_t line_of(const yaml_event_t *event)
{
    return (int32_t)event->start_mark.line + 1;
}

/* Puts the place before the text that is in err already. */
static ek_status at_line(const reader *r, int32_t line, ek_status status)
{
    ek_err_prefix(r->err, "%s:%d", r->name, line);
    return status;
}

static ek_status refuse(const reader *r, int32_t line, const char *what)
{
    return at_line(r, line, ek_err_set(r->err, EK_ECONFIG, "%s", what));
}

/* The library gives a byte offset, not a line, for bytes that are no text. */
static int32_t line_at_offset(ek_str text, size_t offset)
{
    int32_t line = 1;
    for (size_t i = 0; i < text.len && i < offset; i++)
        line += text.data[i] == '\n';
    return line;
}

/* Whether the indentation of a line (counted from 0) holds a tab, which YAML does not allow. */
static bool is_tabbed(ek_str text, size_t line)
{
    size_t i = 0;
    for (; i < text.len && line > 0; i++)
        line -= text.data[i] == '\n';
    for (; i < text.len && (text.data[i] == ' ' || text.data[i] == '\t'); i++)
        if (text.data[i] == '\t') return true;
    return false;
}

static ek_status refuse_syntax(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "this is not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return ek_err_set(r->err, EK_ENOMEM, "%s: out of memory", r->name);
    if (p->error == YAML_READER_ERROR) {
        ek_err_set(r->err, EK_ECONFIG, "%s; write plain UTF-8 text", problem);
        return at_line(r, line_at_offset(r->text, p->problem_offset), EK_ECONFIG);
    }
    /* The scanner notices at the end of what began at fault; the parser knows the place itself. */
    bool at_start = p->error == YAML_SCANNER_ERROR && p->context;
    const yaml_mark_t *mark = at_start ? &p->context_mark : &p->problem_mark;
    char begun[48] = "";
    if (!at_start && p->context && p->context_mark.line != mark->line)
        snprintf(begun, sizeof begun, " that begins in line %d", (int)p->context_mark.line + 1);
    ek_err_set(r->err, EK_ECONFIG, "%s%s%s%s%s", p->context ? p->context : "", begun,
               p->context ? ": " : "", problem,
               is_tabbed(r->text, mark->line) ? "; indent with spaces, not tabs" : "");
    return at_line(r, (int32_t)mark->line + 1, EK_ECONFIG);
}

/* What no value here needs, and what could make a small file a big one. */
static const char *unwanted(const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_ALIAS_EVENT)
        return "aliases (*name) are not used here; write the value out";
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    }
    if (anchor) return "anchors (&name) are not used here; write the value out";
    return tag ? "tags (!name) are not used here; write the plain value" : NULL;
}

/* The next event, the caller's to delete; nothing to delete after a failure. */
static ek_status next(reader *r, yaml_event_t *out_event)
{
    yaml_event_t event;
    if (!yaml_parser_parse(&r->parser, &event)) return refuse_syntax(r);
    const char *what = unwanted(&event);
    if (what) {
        int32_t line = line_of(&event);
        yaml_event_delete(&event);
        return refuse(r, line, what);
    }
    *out_event = event;
    return EK_OK;
}

static ek_str scalar_text(const yaml_event_t *event)
{
    return (ek_str){(const char *)event->data.scalar.value, event->data.scalar.length};
}

/* `key:` without anything behind it, and YAML's words for the same. */
static bool is_null(const yaml_event_t *event)
{
    if (event->type != YAML_SCALAR_EVENT || event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < EK_COUNT_OF(words); i++)
        if (ek_str_eqz(scalar_text(event), words[i])) return true;
    return false;
}

/* Notes where something is seen, or refuses it the second time. */
static ek_status see_once(reader *r, const char *section, const char *name, int32_t line,
                          int32_t *seen_line)
{
    if (*seen_line == 0) {
        *seen_line = line;
        return EK_OK;
    }
    ek_err_set(r->err, EK_ECONFIG, "%s%s%s stands here again; it is in line %d already", section,
               *section ? "." : "", name, *seen_line);
    return at_line(r, line, EK_ECONFIG);
}

/* The texts of a list that has begun, with commas between them. */
static ek_status read_list(reader *r, const ek_config_key *key)
{
    char text[EK_CONFIG_TEXT_BYTES_MAX];
    size_t n = 0;
    for (;;) {
        yaml_event_t item;
        ek_status status = next(r, &item);
        if (status != EK_OK) return status;
        bool end = item.type == YAML_SEQUENCE_END_EVENT;
        int32_t line = line_of(&item);
        ek_str one = {0};
        if (item.type == YAML_SCALAR_EVENT) one = scalar_text(&item);
        bool fits = n + one.len + 1 < sizeof text;
        if (!end && (one.len == 0 || memchr(one.data, ',', one.len) || !fits)) {
            ek_err_set(r->err, EK_ECONFIG,
                       fits ? "%s.%s is a list of plain words" : "%s.%s is too long", key->section,
                       key->name);
            status = at_line(r, line, EK_ECONFIG);
        } else if (!end) {
            if (n > 0) text[n++] = ',';
            memcpy(text + n, one.data, one.len);
            n += one.len;
        }
        yaml_event_delete(&item);
        if (status != EK_OK) return status;
        if (end) break;
    }
    return ek_config_value_apply(key, (ek_str){text, n}, r->perm, r->config, r->err);
}

static ek_status read_key_value(reader *r, int32_t key_idx)
{
    const ek_config_key *key = &ek_config_keys[key_idx];
    yaml_event_t value;
    ek_status status = next(r, &value);
    if (status != EK_OK) return status;
    int32_t line = line_of(&value);
    if (value.type == YAML_SEQUENCE_START_EVENT && key->is_list) {
        yaml_event_delete(&value);
        return read_list(r, key);
    }
    if (value.type != YAML_SCALAR_EVENT) {
        const char *kind = value.type == YAML_SEQUENCE_START_EVENT ? "a list" : "a group of keys";
        status = ek_err_set(r->err, EK_ECONFIG, "%s.%s is %s; it takes one value", key->section,
                            key->name, kind);
    } else if (is_null(&value)) {
        status =
            ek_err_set(r->err, EK_ECONFIG, "%s.%s has no value; give it one or leave the key out",
                       key->section, key->name);
    } else {
        status = ek_config_value_apply(key, scalar_text(&value), r->perm, r->config, r->err);
    }
    yaml_event_delete(&value);
    return status == EK_OK ? EK_OK : at_line(r, line, status);
}

static ek_status read_key(reader *r, int32_t section, const yaml_event_t *event)
{
    ek_str name = scalar_text(event);
    const char *section_name = ek_config_sections[section].name;
    int32_t key_idx = ek_config_key_find(ek_str_from(section_name), name);
    if (key_idx < 0)
        return at_line(r, line_of(event), ek_config_refuse_name(section, name, r->err));
    ek_status status = see_once(r, section_name, ek_config_keys[key_idx].name, line_of(event),
                                &r->key_line[key_idx]);
    return status == EK_OK ? read_key_value(r, key_idx) : status;
}

/* Keys of a section up to its end. */
static ek_status read_keys(reader *r, int32_t section)
{
    for (;;) {
        yaml_event_t event;
        ek_status status = next(r, &event);
        if (status != EK_OK) return status;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end)
            status = event.type == YAML_SCALAR_EVENT
                         ? read_key(r, section, &event)
                         : refuse(r, line_of(&event), "a key has to be one plain word");
        yaml_event_delete(&event);
        if (end || status != EK_OK) return status;
    }
}

static ek_status read_section(reader *r, int32_t section, int32_t line)
{
    const char *name = ek_config_sections[section].name;
    ek_status status = see_once(r, "", name, line, &r->section_line[section]);
    yaml_event_t value;
    if (status == EK_OK) status = next(r, &value);
    if (status != EK_OK) return status;
    bool is_mapping = value.type == YAML_MAPPING_START_EVENT, is_empty = is_null(&value);
    int32_t value_line = line_of(&value);
    yaml_event_delete(&value);
    if (is_mapping) return read_keys(r, section);
    if (is_empty) return EK_OK; /* all of its keys are commented out */
    ek_err_set(r->err, EK_ECONFIG, "%s is a section; write its keys below it, indented", name);
    return at_line(r, value_line, EK_ECONFIG);
}

static ek_status read_version(reader *r, int32_t line)
{
    ek_status status = see_once(r, "", "version", line, &r->version_line);
    yaml_event_t value;
    if (status == EK_OK) status = next(r, &value);
    if (status != EK_OK) return status;
    bool good = value.type == YAML_SCALAR_EVENT && ek_str_eqz(scalar_text(&value), "1");
    int32_t value_line = line_of(&value);
    yaml_event_delete(&value);
    if (good) return EK_OK;
    return refuse(r, value_line, "version is not 1, the only format that this program reads");
}

static ek_status read_top_key(reader *r, const yaml_event_t *event)
{
    ek_str name = scalar_text(event);
    int32_t line = line_of(event);
    if (ek_str_eqz(name, "version")) return read_version(r, line);
    int32_t section = ek_config_section_find(name);
    if (section >= 0) return read_section(r, section, line);
    return at_line(r, line, ek_config_refuse_name(ROOT, name, r->err));
}

/* Sections up to the end of the top mapping. */
static ek_status read_sections(reader *r)
{
    for (;;) {
        yaml_event_t event;
        ek_status status = next(r, &event);
        if (status != EK_OK) return status;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end)
            status = event.type == YAML_SCALAR_EVENT
                         ? read_top_key(r, &event)
                         : refuse(r, line_of(&event), "a key has to be one plain word");
        yaml_event_delete(&event);
        if (end || status != EK_OK) return status;
    }
}

/* The next event's type and line, when nothing else about it matters. */
static ek_status next_type(reader *r, yaml_event_type_t *out_type, bool *out_null,
                           int32_t *out_line)
{
    yaml_event_t event;
    ek_status status = next(r, &event);
    if (status != EK_OK) return status;
    *out_type = event.type;
    *out_null = is_null(&event);
    *out_line = line_of(&event);
    yaml_event_delete(&event);
    return EK_OK;
}

static ek_status read_stream(reader *r)
{
    yaml_event_type_t type;
    bool is_empty;
    int32_t line;
    ek_status status = next_type(r, &type, &is_empty, &line); /* stream start */
    if (status == EK_OK) status = next_type(r, &type, &is_empty, &line);
    if (status != EK_OK || type == YAML_STREAM_END_EVENT) return status; /* nothing but comments */
    status = next_type(r, &type, &is_empty, &line); /* after the document's start: its value */
    if (status != EK_OK) return status;
    if (type == YAML_MAPPING_START_EVENT)
        status = read_sections(r);
    else if (!is_empty)
        status = refuse(r, line,
                        "a configuration consists of sections, like \"engine:\" with keys below");
    if (status == EK_OK) status = next_type(r, &type, &is_empty, &line); /* document end */
    if (status == EK_OK) status = next_type(r, &type, &is_empty, &line);
    if (status == EK_OK && type != YAML_STREAM_END_EVENT)
        status = refuse(r, line, "a second document begins here; a configuration is one");
    return status;
}

ek_status ek_config_yaml_read(ek_str text, const char *name, ek_arena *perm, ek_config *config,
                              ek_err *err)
{
    if (text.len > EK_CONFIG_FILE_BYTES_MAX)
        return ek_err_set(err, EK_ECONFIG,
                          "%s:1: longer than the %d bytes that a configuration has", name,
                          EK_CONFIG_FILE_BYTES_MAX);
    reader r = {.text = text, .name = name, .perm = perm, .config = config, .err = err};
    if (!yaml_parser_initialize(&r.parser))
        return ek_err_set(err, EK_ENOMEM, "%s: out of memory", name);
    /* Stated, because the library would take some byte pairs for UTF-16. */
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.data, text.len);
    ek_status status = read_stream(&r);
    yaml_parser_delete(&r.parser);
    return status;
}
