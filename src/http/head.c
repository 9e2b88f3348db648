#include "http/head.h"

/* Characters of a token (RFC 9110, 5.6.2): methods and field names are made of them. */
static bool is_token_char(char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_token(ek_str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!is_token_char(text.data[i])) return false;
    return text.len > 0;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool ek_http_head_same(ek_str text, const char *word)
{
    size_t i = 0;
    for (; i < text.len; i++)
        if (word[i] == '\0' || lower(text.data[i]) != lower(word[i])) return false;
    return word[i] == '\0';
}

static ek_str trim(ek_str text)
{
    while (text.len && (text.data[0] == ' ' || text.data[0] == '\t'))
        text = (ek_str){text.data + 1, text.len - 1};
    while (text.len && (text.data[text.len - 1] == ' ' || text.data[text.len - 1] == '\t'))
        text.len--;
    return text;
}

/* The next line without its CRLF; the caller knows that every line of the text ends with one. */
static ek_str take_line(ek_str *rest)
{
    ptrdiff_t end = ek_str_find(*rest, EK_STR("\r\n"));
    ek_str line = {rest->data, end < 0 ? rest->len : (size_t)end};
    size_t skip = end < 0 ? rest->len : line.len + 2;
    *rest = (ek_str){rest->data + skip, rest->len - skip};
    return line;
}

/*
 * A client that ends a body with an extra line break is common enough to be forgiven, once (RFC
 * 9112, 2.2).
 */
static size_t leading_blank(ek_str text)
{
    return text.len >= 2 && text.data[0] == '\r' && text.data[1] == '\n' ? 2 : 0;
}

ek_status ek_http_head_find_end(ek_str text, size_t *scanned, size_t *out_bytes)
{
    size_t first = leading_blank(text);
    for (size_t i = *scanned; i < text.len; i++) {
        char c = text.data[i];
        if (c == '\0') return EK_EFORMAT;
        if (c == '\n' && (i == 0 || text.data[i - 1] != '\r')) return EK_EFORMAT;
        if (i > 0 && text.data[i - 1] == '\r' && c != '\n') return EK_EFORMAT;
        if (c != '\n' || i < first) continue;
        /* An empty line: CRLF right after the CRLF before it. */
        if (i == first + 1 || (i >= first + 3 && text.data[i - 2] == '\n')) {
            *scanned = i + 1;
            *out_bytes = i + 1;
            return EK_OK;
        }
    }
    *scanned = text.len;
    return EK_AGAIN;
}

static ek_status malformed(ek_fault *fault, const char *what)
{
    ek_http_fault_set(fault, &ek_http_fault_malformed_request, NULL, "malformed HTTP request: %s",
                      what);
    return EK_EFORMAT;
}

/*
 * Path and query of a target in origin form ("/path?query") or absolute form
 * ("http://host/path?query").
 */
static bool split_target(ek_str target, ek_head *head)
{
    for (size_t i = 0; i < target.len; i++)
        if (target.data[i] <= ' ' || target.data[i] > '~' || target.data[i] == '#') return false;
    if (target.len >= 7 && ek_http_head_same((ek_str){target.data, 7}, "http://")) {
        size_t i = 7;
        while (i < target.len && target.data[i] != '/')
            i++;
        target = (ek_str){target.data + i, target.len - i};
    }
    if (target.len == 0 || (target.data[0] != '/' && !ek_str_eqz(target, "*"))) return false;
    ptrdiff_t mark = ek_str_find(target, EK_STR("?"));
    size_t n_path = mark < 0 ? target.len : (size_t)mark;
    size_t n_skip = mark < 0 ? target.len : n_path + 1;
    head->path = (ek_str){target.data, n_path};
    head->query = (ek_str){target.data + n_skip, target.len - n_skip};
    return true;
}

static ek_status parse_request_line(ek_str line, ek_head *head, ek_fault *fault)
{
    ptrdiff_t first = ek_str_find(line, EK_STR(" "));
    if (first < 0) return malformed(fault, "no request line");
    ek_str rest = {line.data + first + 1, line.len - (size_t)first - 1};
    ptrdiff_t second = ek_str_find(rest, EK_STR(" "));
    if (second < 0) return malformed(fault, "no HTTP version");
    head->method = (ek_str){line.data, (size_t)first};
    ek_str version = {rest.data + second + 1, rest.len - (size_t)second - 1};
    if (!is_token(head->method) || head->method.len > 32) return malformed(fault, "bad method");
    if (version.len != 8 || !ek_str_starts(version, EK_STR("HTTP/")) || version.data[6] != '.')
        return malformed(fault, "bad HTTP version");
    if (!ek_str_eqz(version, "HTTP/1.1") && !ek_str_eqz(version, "HTTP/1.0")) {
        ek_http_fault_set(fault, &ek_http_fault_version, NULL,
                          "this server speaks HTTP/1.1 and HTTP/1.0");
        return EK_EFORMAT;
    }
    head->version_minor = version.data[7] - '0';
    if (!split_target((ek_str){rest.data, (size_t)second}, head))
        return malformed(fault, "bad request target");
    return EK_OK;
}

/* Digits only: no sign, no blank, no list; 19 digits always fit into 64 bits. */
static bool parse_length(ek_str value, uint64_t *out_length)
{
    if (value.len == 0 || value.len > 19) return false;
    uint64_t length = 0;
    for (size_t i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9') return false;
        length = length * 10 + (uint64_t)(value.data[i] - '0');
    }
    *out_length = length;
    return true;
}

static bool is_value(ek_str value)
{
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.data[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

/* What the fields say about framing, counted while they pass by. */
typedef struct framing {
    int32_t n_lengths;
    int32_t n_encodings;
    int32_t n_hosts;
    int32_t n_types;
    bool says_close;
    bool says_keep_alive;
    bool expects_other;
} framing;

static ek_status note_field(ek_str name, ek_str value, ek_head *head, framing *seen,
                            ek_fault *fault)
{
    if (ek_http_head_same(name, "content-length")) {
        seen->n_lengths++;
        if (!parse_length(value, &head->content_length))
            return malformed(fault, "bad Content-Length");
    } else if (ek_http_head_same(name, "transfer-encoding")) {
        seen->n_encodings++;
        if (!ek_http_head_same(value, "chunked"))
            return malformed(fault, "unknown Transfer-Encoding");
        head->chunked = true;
    } else if (ek_http_head_same(name, "host")) {
        seen->n_hosts++;
    } else if (ek_http_head_same(name, "content-type")) {
        seen->n_types++;
    } else if (ek_http_head_same(name, "connection")) {
        seen->says_close |= ek_http_head_has_token(value, "close");
        seen->says_keep_alive |= ek_http_head_has_token(value, "keep-alive");
    } else if (ek_http_head_same(name, "expect")) {
        head->expects_continue |= ek_http_head_same(value, "100-continue");
        seen->expects_other |= !ek_http_head_same(value, "100-continue");
    }
    return EK_OK;
}

static ek_status parse_fields(ek_str lines, ek_head *head, framing *seen, ek_fault *fault)
{
    int32_t n_fields = 0;
    while (lines.len) {
        ek_str line = take_line(&lines);
        if (line.data[0] == ' ' || line.data[0] == '\t')
            return malformed(fault, "folded header line");
        ptrdiff_t colon = ek_str_find(line, EK_STR(":"));
        if (colon < 0) return malformed(fault, "header line without a colon");
        ek_str name = {line.data, (size_t)colon};
        ek_str value = trim((ek_str){line.data + colon + 1, line.len - (size_t)colon - 1});
        if (!is_token(name)) return malformed(fault, "bad header name");
        if (!is_value(value)) return malformed(fault, "control character in a header");
        if (++n_fields > EK_HEAD_FIELDS_MAX) {
            ek_http_fault_set(fault, &ek_http_fault_headers_too_large, NULL,
                              "more than %d header fields", EK_HEAD_FIELDS_MAX);
            return EK_EFORMAT;
        }
        ek_status status = note_field(name, value, head, seen, fault);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}

static ek_status check_framing(ek_head *head, const framing *seen, ek_fault *fault)
{
    if (seen->n_lengths > 1) return malformed(fault, "more than one Content-Length");
    if (seen->n_encodings > 1) return malformed(fault, "more than one Transfer-Encoding");
    if (seen->n_lengths && seen->n_encodings)
        return malformed(fault, "Content-Length beside Transfer-Encoding");
    if (seen->n_encodings && head->version_minor == 0)
        return malformed(fault, "Transfer-Encoding in HTTP/1.0");
    if (seen->n_hosts > 1 || (seen->n_hosts == 0 && head->version_minor == 1))
        return malformed(fault, "exactly one Host header is required");
    if (seen->n_types > 1) return malformed(fault, "more than one Content-Type");
    if (seen->expects_other) {
        ek_http_fault_set(fault, &ek_http_fault_expectation, NULL,
                          "the only supported expectation is 100-continue");
        return EK_EFORMAT;
    }
    /* HTTP/1.0 has no interim answers, so there is nothing to expect. */
    if (head->version_minor == 0) head->expects_continue = false;
    head->keep_alive = !seen->says_close && (head->version_minor == 1 || seen->says_keep_alive);
    return EK_OK;
}

ek_status ek_http_head_parse(ek_str text, ek_head *out_head, ek_fault *fault)
{
    ek_head head = {.bytes = text.len};
    framing seen = {0};
    size_t skip = leading_blank(text);
    /* The lines without the last CRLF, the empty line's own: so each line in `rest` is a field. */
    if (text.len < skip + 4) return malformed(fault, "no request line");
    ek_str rest = {text.data + skip, text.len - skip - 2};
    ek_status status = parse_request_line(take_line(&rest), &head, fault);
    head.fields = rest;
    if (status == EK_OK) status = parse_fields(rest, &head, &seen, fault);
    if (status == EK_OK) status = check_framing(&head, &seen, fault);
    if (status != EK_OK) return status;
    *out_head = head;
    return EK_OK;
}

int32_t ek_http_head_count(const ek_head *head, const char *name, ek_str *out_value)
{
    int32_t n = 0;
    ek_str lines = head->fields;
    while (lines.len) {
        ek_str line = take_line(&lines);
        ptrdiff_t colon = ek_str_find(line, EK_STR(":"));
        if (colon < 0 || !ek_http_head_same((ek_str){line.data, (size_t)colon}, name)) continue;
        if (n++ == 0)
            *out_value = trim((ek_str){line.data + colon + 1, line.len - (size_t)colon - 1});
    }
    return n;
}

bool ek_http_head_field(const ek_head *head, const char *name, ek_str *out_value)
{
    return ek_http_head_count(head, name, out_value) > 0;
}

bool ek_http_head_has_token(ek_str list, const char *token)
{
    size_t i = 0;
    while (i <= list.len) {
        size_t end = i;
        while (end < list.len && list.data[end] != ',')
            end++;
        if (ek_http_head_same(trim((ek_str){list.data + i, end - i}), token)) return true;
        i = end + 1;
    }
    return false;
}
