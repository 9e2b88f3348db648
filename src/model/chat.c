#include "model/chat.h"

#include <string.h>

#include "base/utf8.h"
#include "model/chat_formats.h"
#include "model/tokenizer_internal.h"

#define SYSTEM_JOINT "\n\n" /* between system messages that become one */

const char *ek_model_chat_list(void)
{
    return "chatml, qwen1.5, qwen2, qwen2.5, qwen3, mixtral, mistral-v1, mistral-v3, mistral-v7, "
           "llama2, llama3, llama4, olmo, tulu, zephyr, deepseek, deepseek-v3, deepseek-v3.1, "
           "deepseek-r1, glm4, glm4.5, gemma, granite";
}

const char *ek_model_chat_name(const ek_chat_format *format)
{
    return format->name;
}

const ek_chat_format *ek_model_chat_by_name(ek_str name)
{
    int32_t n;
    const ek_chat_format *formats = ek_model_chat_formats(&n);
    for (int32_t i = 0; i < n; i++)
        if (ek_str_eqz(name, formats[i].name)) return &formats[i];
    return NULL;
}

ek_status ek_model_chat_detect(const ek_gguf *gguf, const ek_chat_format **out_format, ek_err *err)
{
    static const char key[] = "tokenizer.chat_template";
    ek_str text;
    ek_status status = ek_model_gguf_str(gguf, key, &text, err);
    if (status == EK_ENOTFOUND)
        return ek_err_set(err, EK_ENOTFOUND,
                          "the file has no %s; name the format with --chat-format NAME, one of %s",
                          key, ek_model_chat_list());
    if (status != EK_OK) return status;
    const ek_chat_format *format = ek_model_chat_recognise(text);
    if (!format)
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "%s writes no format that is known here; if it is near enough to one, "
                          "name that with --chat-format NAME, one of %s",
                          key, ek_model_chat_list());
    *out_format = format;
    return EK_OK;
}

/* ---- white space ---- */

/* What str.strip() of Python, and so `| trim` of a template, takes for white space. */
static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static ek_str trim_left(ek_str s)
{
    while (s.len > 0) {
        uint32_t cp = 0;
        size_t len = ek_utf8_decode(s, &cp);
        if (len == 0 || !is_space(cp)) break;
        s = (ek_str){s.data + len, s.len - len};
    }
    return s;
}

static ek_str trim_right(ek_str s)
{
    while (s.len > 0) {
        size_t back = 1;
        while (back < s.len && back < 4 && ((uint8_t)s.data[s.len - back] & 0xc0) == 0x80)
            back++;
        uint32_t cp = 0;
        const char *last = s.data + s.len - back;
        if (ek_utf8_decode((ek_str){last, back}, &cp) != back || !is_space(cp)) break;
        s.len -= back;
    }
    return s;
}

/* ---- writing a conversation ---- */

/* Measures when text is NULL, writes when it is not; both passes add the same things. */
typedef struct writer {
    const ek_chat_format *format;
    const ek_tokenizer *tokenizer;
    const ek_chat_message *messages;
    int32_t n_messages;
    int32_t n_first_systems; /* system messages before all others */
    int32_t host;            /* the user message that takes them in; -1: none does */
    char *text;
    ek_token_mark *marks;
    size_t len;
    int64_t n_marks;
} writer;

static void add_text(writer *w, ek_str s)
{
    if (w->text && s.len > 0) memcpy(w->text + w->len, s.data, s.len);
    w->len += s.len;
}

static void add_marked(writer *w, ek_str s, int32_t id)
{
    if (w->marks) w->marks[w->n_marks] = (ek_token_mark){w->len, w->len + s.len, id};
    w->n_marks++;
    add_text(w, s);
}

/* A token that the vocabulary does not have is left out, as templates do. */
static void add_token(writer *w, int32_t id)
{
    if (id >= 0) add_marked(w, ek_model_tokenizer_name(w->tokenizer, id), id);
}

/* A string of the format's own: the only text in which special tokens are recognised. */
static void add_marker(writer *w, const char *marker)
{
    while (marker && *marker) {
        if (*marker == EK_CHAT_BOS[0] || *marker == EK_CHAT_EOS[0]) {
            bool bos = *marker++ == EK_CHAT_BOS[0];
            add_token(w, bos ? ek_model_tokenizer_bos(w->tokenizer)
                             : ek_model_tokenizer_eos(w->tokenizer));
            continue;
        }
        size_t len = strcspn(marker, EK_CHAT_BOS EK_CHAT_EOS);
        add_marked(w, (ek_str){marker, len}, -1);
        marker += len;
    }
}

static void add_content(writer *w, ek_str content, ek_chat_trim trim, bool after_system)
{
    if (trim != EK_CHAT_TRIM_NONE) {
        content = trim_right(content);
        if (trim == EK_CHAT_TRIM_EACH || !after_system) content = trim_left(content);
    }
    add_text(w, content);
}

static void add_first_systems(writer *w)
{
    const ek_chat_turn *turn = &w->format->turn[EK_CHAT_ROLE_SYSTEM];
    add_marker(w, turn->before);
    for (int32_t i = 0; i < w->n_first_systems; i++) {
        if (i > 0) add_marker(w, SYSTEM_JOINT);
        add_content(w, w->messages[i].content, turn->trim, false);
    }
    add_marker(w, turn->after);
}

static void add_turn(writer *w, int32_t idx, ek_chat_role role)
{
    const ek_chat_turn *turn = &w->format->turn[role];
    bool hosts = idx == w->host;
    add_marker(w, turn->before);
    if (hosts) add_first_systems(w);
    add_content(w, w->messages[idx].content, turn->trim, hosts);
    add_marker(w, turn->after);
}

static bool role_of(ek_str name, ek_chat_role *out_role)
{
    static const struct {
        const char *name;
        ek_chat_role role;
    } roles[] = {{"system", EK_CHAT_ROLE_SYSTEM},
                 {"developer", EK_CHAT_ROLE_SYSTEM},
                 {"user", EK_CHAT_ROLE_USER},
                 {"assistant", EK_CHAT_ROLE_ASSISTANT},
                 {"tool", EK_CHAT_ROLE_TOOL}};
    for (size_t i = 0; i < EK_COUNT_OF(roles); i++) {
        if (!ek_str_eqz(name, roles[i].name)) continue;
        *out_role = roles[i].role;
        return true;
    }
    return false;
}

/* Look at every message before anything is written, so that writing cannot fail. */
static ek_status plan(writer *w, ek_err *err)
{
    const ek_chat_format *format = w->format;
    bool merges =
        format->system == EK_CHAT_SYSTEM_FIRST_USER || format->system == EK_CHAT_SYSTEM_LAST_USER;
    if (w->n_messages < 1) return ek_err_set(err, EK_EINVAL, "messages is empty");
    w->host = -1;
    for (int32_t i = 0; i < w->n_messages; i++) {
        ek_chat_role role;
        if (!role_of(w->messages[i].role, &role))
            return ek_err_set(
                err, EK_EINVAL,
                "messages[%d].role is \"%.*s\"; known roles: system, developer, user, "
                "assistant, tool",
                i, EK_STR_ARG(w->messages[i].role));
        if (!format->turn[role].before)
            return ek_err_set(err, EK_EINVAL,
                              "messages[%d]: the chat format %s has no place for the role %.*s", i,
                              format->name, EK_STR_ARG(w->messages[i].role));
        if (role == EK_CHAT_ROLE_SYSTEM && w->n_first_systems == i) {
            w->n_first_systems++;
            continue;
        }
        if (role == EK_CHAT_ROLE_SYSTEM && format->system != EK_CHAT_SYSTEM_TURN)
            return ek_err_set(err, EK_EINVAL,
                              "messages[%d]: the chat format %s takes system messages only at the "
                              "start of a conversation",
                              i, format->name);
        if (merges && w->n_first_systems > 0 && role == EK_CHAT_ROLE_USER &&
            (w->host < 0 || format->system == EK_CHAT_SYSTEM_LAST_USER))
            w->host = i;
    }
    if (merges && w->n_first_systems > 0 && w->host < 0)
        return ek_err_set(
            err, EK_EINVAL,
            "messages[0]: the chat format %s puts system messages into a user message, "
            "and there is none",
            format->name);
    return EK_OK;
}

static void write_all(writer *w)
{
    const ek_chat_format *format = w->format;
    bool bos = format->begin == EK_CHAT_BEGIN_BOS ||
               (format->begin == EK_CHAT_BEGIN_FILE && ek_model_tokenizer_adds_bos(w->tokenizer));
    if (bos) add_token(w, ek_model_tokenizer_bos(w->tokenizer));
    add_marker(w, format->opening);
    int32_t first = 0;
    if (format->system != EK_CHAT_SYSTEM_TURN) first = w->n_first_systems;
    if (format->system == EK_CHAT_SYSTEM_START && first > 0) add_first_systems(w);
    if (w->n_first_systems == 0 && format->default_system) {
        add_marker(w, format->turn[EK_CHAT_ROLE_SYSTEM].before);
        add_marker(w, format->default_system);
        add_marker(w, format->turn[EK_CHAT_ROLE_SYSTEM].after);
    }
    for (int32_t i = first; i < w->n_messages; i++) {
        ek_chat_role role = EK_CHAT_ROLE_USER;
        if (role_of(w->messages[i].role, &role)) add_turn(w, i, role);
    }
    add_marker(w, format->answer);
}

/* Plan and measure. */
static ek_status measure(writer *w, const ek_chat_format *format, const ek_tokenizer *tokenizer,
                         const ek_chat_message *messages, int32_t n_messages, ek_err *err)
{
    *w = (writer){
        .format = format, .tokenizer = tokenizer, .messages = messages, .n_messages = n_messages};
    ek_status status = plan(w, err);
    if (status == EK_OK) write_all(w);
    return status;
}

/* Write what was measured; marks may be NULL. */
static void write_into(writer *w, char *text, ek_token_mark *marks)
{
    w->text = text;
    w->marks = marks;
    w->len = 0;
    w->n_marks = 0;
    write_all(w);
}

int64_t ek_model_chat_ids_max(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                              const ek_chat_message *messages, int32_t n_messages)
{
    writer w;
    if (measure(&w, format, tokenizer, messages, n_messages, NULL) != EK_OK) return 0;
    return ek_model_tokenizer_ids_max(tokenizer, w.len) + 2 * w.n_marks;
}

size_t ek_model_chat_scratch_bytes(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                                   const ek_chat_message *messages, int32_t n_messages)
{
    writer w;
    if (measure(&w, format, tokenizer, messages, n_messages, NULL) != EK_OK) return 0;
    return w.len + (size_t)w.n_marks * sizeof(ek_token_mark) + _Alignof(ek_token_mark) +
           ek_model_tokenizer_scratch_bytes(tokenizer, w.len);
}

ek_status ek_model_chat_encode(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                               const ek_chat_message *messages, int32_t n_messages,
                               ek_arena scratch, int32_t *out_ids, int64_t max_ids, int64_t *out_n,
                               ek_err *err)
{
    writer w;
    ek_status status = measure(&w, format, tokenizer, messages, n_messages, err);
    if (status != EK_OK) return status;
    ek_token_mark *marks = ek_try_new(&scratch, ek_token_mark, w.n_marks);
    char *text = ek_try_new(&scratch, char, w.len);
    if (!marks || !text)
        return ek_err_set(err, EK_ENOMEM, "no memory to write a conversation of %zu bytes", w.len);
    write_into(&w, text, marks);
    status = ek_model_tokenizer_encode_marked(tokenizer, (ek_str){text, w.len}, marks, w.n_marks,
                                              scratch, out_ids, max_ids, out_n);
    if (status != EK_OK)
        return ek_err_set(err, status, "cannot encode a conversation of %zu bytes: %s", w.len,
                          ek_status_text(status));
    return EK_OK;
}

ek_status ek_model_chat_render(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                               const ek_chat_message *messages, int32_t n_messages, ek_arena *perm,
                               ek_str *out_text, ek_err *err)
{
    writer w;
    ek_status status = measure(&w, format, tokenizer, messages, n_messages, err);
    if (status != EK_OK) return status;
    char *text = ek_try_new(perm, char, w.len);
    if (!text)
        return ek_err_set(err, EK_ENOMEM, "no memory to write a conversation of %zu bytes", w.len);
    write_into(&w, text, NULL);
    *out_text = (ek_str){text, w.len};
    return EK_OK;
}
