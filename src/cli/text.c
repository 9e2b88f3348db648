#include "cli/text.h"

#include <string.h>

#include "sys/mem.h"

ek_status ek_cli_text_append(ek_cli_text *text, ek_str more, size_t max_bytes)
{
    if (more.len > max_bytes || text->len > max_bytes - more.len) return EK_ERANGE;
    const size_t needed = text->len + more.len + 1;
    if (needed > text->room) {
        const size_t room = needed < 256 ? 256 : needed * 2;
        char *data = ek_sys_realloc(text->data, room);
        if (!data) return EK_ENOMEM;
        text->data = data;
        text->room = room;
    }
    if (more.len) memcpy(text->data + text->len, more.data, more.len);
    text->len += more.len;
    text->data[text->len] = '\0';
    return EK_OK;
}

void ek_cli_text_drop(ek_cli_text *text, size_t n)
{
    if (n == 0) return;
    memmove(text->data, text->data + n, text->len - n);
    text->len -= n;
    text->data[text->len] = '\0';
}

void ek_cli_text_free(ek_cli_text *text)
{
    ek_sys_free(text->data);
    *text = (ek_cli_text){0};
}
