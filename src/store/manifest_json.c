/* A manifest as JSON text, both ways. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "store/manifest.h"
#include "sys/mem.h"

#define FORMAT    "evenkeel-manifest"
#define CANONICAL (JSON_COMPACT | JSON_SORT_KEYS)
#define COUNT_MAX 1048576 /* of layers or experts; the model's own limits are far below */

static const char *const parts[] = {
    [EK_STORE_HEAD] = "head",
    [EK_STORE_DENSE] = "dense",
    [EK_STORE_EXPERT] = "expert",
    [EK_STORE_GAP] = "gap",
};

/* ---- writing ---- */

static ek_status dump(const json_t *json, size_t flags, ek_str *out_text, ek_err *err)
{
    size_t bytes = json_dumpb(json, NULL, 0, flags);
    char *text = bytes ? ek_sys_calloc(1, bytes + 2) : NULL;
    if (!text) return ek_err_set(err, EK_ENOMEM, "no memory for the manifest");
    (void)json_dumpb(json, text, bytes, flags);
    *out_text = (ek_str){text, bytes};
    return EK_OK;
}

/* The body's hash is of its canonical form: keys sorted, no blanks, UTF-8. */
static ek_status hash_body(const json_t *body, char out_hex[EK_SHA256_HEX_BYTES], ek_err *err)
{
    ek_str text = {0};
    ek_status status = dump(body, CANONICAL, &text, err);
    if (status != EK_OK) return status;
    status = ek_sys_sha256_of(text.data, text.len, out_hex);
    ek_sys_free((void *)(uintptr_t)text.data);
    return status == EK_OK ? EK_OK : ek_err_set(err, status, "OpenSSL has no SHA-256");
}

static json_t *shard_json(const ek_store_shard *s)
{
    json_t *json =
        json_pack("{s:s, s:I, s:I, s:s}", "part", parts[s->part], "offset", (json_int_t)s->offset,
                  "bytes", (json_int_t)s->bytes, "sha256", s->sha256);
    int rc = json ? 0 : -1;
    if (rc == 0 && s->tensor[0]) rc = json_object_set_new(json, "tensor", json_string(s->tensor));
    if (rc == 0 && s->part == EK_STORE_EXPERT)
        rc = json_object_set_new(json, "layer", json_integer(s->layer)) |
             json_object_set_new(json, "expert", json_integer(s->expert));
    if (rc == 0) return json;
    json_decref(json);
    return NULL;
}

static json_t *file_json(const ek_store_manifest *m, const ek_store_file *file)
{
    json_t *shards = json_array();
    for (int32_t i = 0; i < file->n_shards; i++)
        if (json_array_append_new(shards, shard_json(&m->shards[file->first + i])) != 0) {
            json_decref(shards);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:o}", "name", file->name, "bytes", (json_int_t)file->bytes,
                     "shards", shards);
}

static json_t *body_json(const ek_store_manifest *m)
{
    json_t *files = json_array();
    for (int32_t i = 0; i < m->n_files; i++)
        if (json_array_append_new(files, file_json(m, &m->files[i])) != 0) {
            json_decref(files);
            return NULL;
        }
    return json_pack("{s:s, s:s, s:i, s:i, s:s, s:s, s:o}", "architecture", m->arch, "model",
                     m->model, "layers", (int)m->n_layers, "experts", (int)m->n_experts, "identity",
                     m->identity, "tokenizer_sha256", m->tokenizer, "files", files);
}

ek_status ek_store_manifest_print(ek_store_manifest *manifest, ek_str *out_text, ek_err *err)
{
    json_t *body = body_json(manifest);
    if (!body)
        return ek_err_set(err, EK_EFORMAT, "a name in the model is not UTF-8, or memory is short");
    ek_status status = hash_body(body, manifest->body_sha256, err);
    json_t *root = json_pack("{s:s, s:i, s:s, s:o}", "format", FORMAT, "version", EK_STORE_VERSION,
                             "body_sha256", manifest->body_sha256, "body", body);
    if (status == EK_OK && !root) status = ek_err_set(err, EK_ENOMEM, "no memory for the manifest");
    if (status == EK_OK) status = dump(root, JSON_INDENT(1), out_text, err);
    json_decref(root);
    return status;
}

/* ---- reading ---- */

/* Where the reader is, so that an error can say it. */
typedef struct place {
    ek_arena *perm;
    ek_store_manifest *m;
    const char *file; /* name; "" outside files */
    int64_t shard;    /* in the file; below 0: none */
    ek_err *err;
} place;

static ek_status refuse(const place *p, const char *key, const char *what)
{
    if (p->shard >= 0)
        return ek_err_set(p->err, EK_EFORMAT, "manifest: file %s: shard %" PRId64 ": %s: %s",
                          p->file, p->shard, key, what);
    return ek_err_set(p->err, EK_EFORMAT, "manifest: %s%s%s: %s", p->file[0] ? "file " : "",
                      p->file, p->file[0] ? "" : key, what);
}

static ek_status take_text(const place *p, const json_t *object, const char *key,
                           const char **out_text)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) return refuse(p, key, "a text is missing");
    const ek_str text = {json_string_value(value), json_string_length(value)};
    *out_text = ek_arena_try_strz(p->perm, text);
    return *out_text ? EK_OK : ek_err_set(p->err, EK_ENOMEM, "no memory for the manifest");
}

static ek_status take_int(const place *p, const json_t *object, const char *key, int64_t min,
                          int64_t max, int64_t *out_value)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        return refuse(p, key, "a whole number is missing, or out of range");
    *out_value = json_integer_value(value);
    return EK_OK;
}

static ek_status take_hash(const place *p, const json_t *object, const char *key,
                           char out_hex[EK_SHA256_HEX_BYTES])
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    if (json_string_length(value) != EK_SHA256_HEX_BYTES - 1 ||
        strspn(text, "0123456789abcdef") != EK_SHA256_HEX_BYTES - 1)
        return refuse(p, key, "is not 64 lower-case hexadecimal digits");
    memcpy(out_hex, text, EK_SHA256_HEX_BYTES);
    return EK_OK;
}

static ek_status take_part(const place *p, const json_t *json, ek_store_part *out_part)
{
    const json_t *value = json_object_get(json, "part");
    for (size_t i = 0; json_is_string(value) && i < EK_COUNT_OF(parts); i++) {
        if (strcmp(json_string_value(value), parts[i]) == 0) {
            *out_part = (ek_store_part)i;
            return EK_OK;
        }
    }
    return refuse(p, "part", "is none of head, dense, expert and gap");
}

/* free_from: where the shard before it ends. */
static ek_status take_shard(const place *p, const json_t *json, const ek_store_file *file,
                            int64_t free_from, ek_store_shard *s)
{
    int64_t layer = -1, expert = -1;
    s->tensor = "";
    ek_status status = take_part(p, json, &s->part);
    if (status == EK_OK)
        status = take_int(p, json, "offset", free_from, file->bytes - 1, &s->offset);
    if (status == EK_OK) status = take_int(p, json, "bytes", 1, file->bytes - s->offset, &s->bytes);
    if (status == EK_OK) status = take_hash(p, json, "sha256", s->sha256);
    if (status == EK_OK && (s->part == EK_STORE_DENSE || s->part == EK_STORE_EXPERT))
        status = take_text(p, json, "tensor", &s->tensor);
    if (status == EK_OK && s->part == EK_STORE_EXPERT) {
        status = take_int(p, json, "layer", 0, p->m->n_layers - 1, &layer);
        if (status == EK_OK) status = take_int(p, json, "expert", 0, p->m->n_experts - 1, &expert);
    }
    s->layer = (int32_t)layer;
    s->expert = (int32_t)expert;
    return status;
}

/* A name becomes a path below a directory of ours: it must not lead anywhere else. */
static bool is_name(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= EK_STORE_NAME_MAX && name[0] != '.' && !strchr(name, '/') &&
           strcspn(name, "\n\r\t\\?#%") == len;
}

static ek_status take_file(place *p, const json_t *json, int32_t idx)
{
    ek_store_manifest *m = p->m;
    ek_store_file *file = &m->files[idx];
    const json_t *shards = json_object_get(json, "shards");
    ek_status status = take_text(p, json, "name", &file->name);
    if (status != EK_OK) return status;
    if (!is_name(file->name)) return refuse(p, "files", "a name is not that of a file");
    for (int32_t i = 0; i < idx; i++)
        if (strcmp(m->files[i].name, file->name) == 0)
            return refuse(p, "files", "two have the same name");
    p->file = file->name;
    status = take_int(p, json, "bytes", 1, INT64_MAX / 4, &file->bytes);
    if (status != EK_OK) return status;
    if (!json_is_array(shards) || json_array_size(shards) == 0)
        return refuse(p, "shards", "it has no shards");
    file->first = m->n_shards;
    int64_t free_from = 0;
    for (size_t i = 0; i < json_array_size(shards); i++) {
        ek_store_shard *s = &m->shards[m->n_shards];
        p->shard = (int64_t)i;
        s->file = idx;
        status = take_shard(p, json_array_get(shards, i), file, free_from, s);
        if (status != EK_OK) return status;
        free_from = s->offset + s->bytes;
        m->n_shards++;
    }
    file->n_shards = m->n_shards - file->first;
    p->file = "";
    p->shard = -1;
    return EK_OK;
}

static ek_status take_files(place *p, const json_t *files)
{
    size_t n_files = json_array_size(files), n_shards = 0;
    if (!json_is_array(files) || n_files == 0) return refuse(p, "files", "there are none");
    for (size_t i = 0; i < n_files; i++)
        n_shards += json_array_size(json_object_get(json_array_get(files, i), "shards"));
    if (n_files > INT32_MAX / 2 || n_shards > INT32_MAX / 2)
        return refuse(p, "files", "there are too many");
    p->m->files = ek_try_new(p->perm, ek_store_file, n_files);
    p->m->shards = ek_try_new(p->perm, ek_store_shard, n_shards + 1);
    if (!p->m->files || !p->m->shards)
        return ek_err_set(p->err, EK_ENOMEM, "no memory for the manifest");
    ek_status status = EK_OK;
    for (size_t i = 0; status == EK_OK && i < n_files; i++) {
        p->m->n_files = (int32_t)i + 1;
        status = take_file(p, json_array_get(files, i), (int32_t)i);
    }
    return status;
}

static ek_status take_body(place *p, const json_t *body)
{
    int64_t n_layers = 0, n_experts = 0;
    ek_store_manifest *m = p->m;
    ek_status status = take_text(p, body, "architecture", &m->arch);
    if (status == EK_OK) status = take_text(p, body, "model", &m->model);
    if (status == EK_OK) status = take_int(p, body, "layers", 1, COUNT_MAX, &n_layers);
    if (status == EK_OK) status = take_int(p, body, "experts", 1, COUNT_MAX, &n_experts);
    if (status == EK_OK) status = take_hash(p, body, "identity", m->identity);
    if (status == EK_OK) status = take_hash(p, body, "tokenizer_sha256", m->tokenizer);
    m->n_layers = (int32_t)n_layers;
    m->n_experts = (int32_t)n_experts;
    return status == EK_OK ? take_files(p, json_object_get(body, "files")) : status;
}

static ek_status take_root(place *p, const json_t *root)
{
    const json_t *format = json_object_get(root, "format");
    const json_t *body = json_object_get(root, "body");
    char found[EK_SHA256_HEX_BYTES];
    int64_t version;
    if (!json_is_string(format) || strcmp(json_string_value(format), FORMAT) != 0)
        return ek_err_set(p->err, EK_EFORMAT,
                          "is no manifest: its format is not \"" FORMAT
                          "\"; `evenkeel manifest` makes one");
    ek_status status = take_int(p, root, "version", 1, INT32_MAX, &version);
    if (status != EK_OK) return status;
    if (version != EK_STORE_VERSION)
        return ek_err_set(p->err, EK_EUNSUPPORTED,
                          "manifest: its version is %" PRId64 "; this program reads version %d",
                          version, EK_STORE_VERSION);
    if (!json_is_object(body)) return refuse(p, "body", "is missing");
    status = take_hash(p, root, "body_sha256", p->m->body_sha256);
    if (status == EK_OK) status = hash_body(body, found, p->err);
    if (status != EK_OK) return status;
    if (strcmp(found, p->m->body_sha256) != 0)
        return ek_err_set(p->err, EK_EFORMAT,
                          "manifest: was changed: its body's SHA-256 should be %s, found %s",
                          p->m->body_sha256, found);
    return take_body(p, body);
}

size_t ek_store_manifest_perm_bytes_max(size_t text_bytes)
{
    /* A shard takes some 120 bytes of text at the least and little more than that here. */
    return text_bytes * 4 + 65536;
}

ek_status ek_store_manifest_parse(ek_str text, ek_arena *perm, ek_store_manifest *out_manifest,
                                  ek_err *err)
{
    json_error_t wrong;
    json_t *root = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &wrong);
    if (!root)
        return ek_err_set(err, EK_EFORMAT, "is no manifest: line %d: %s", wrong.line, wrong.text);
    ek_store_manifest m = {0};
    place p = {.perm = perm, .m = &m, .file = "", .shard = -1, .err = err};
    ek_status status = take_root(&p, root);
    json_decref(root);
    if (status == EK_OK) *out_manifest = m;
    return status;
}
