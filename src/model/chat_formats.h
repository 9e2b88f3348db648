/*
 * Chat formats as data: the strings around each role, where a system message goes, and how a file's
 * template is recognised. docs/formats/chat.md shows each of them at work. Private to chat*.c.
 */
#ifndef EK_MODEL_CHAT_FORMATS_H
#define EK_MODEL_CHAT_FORMATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/span.h"
#include "model/chat.h"

/* In the strings of a format: the model's own begin and end tokens, whatever they are called. */
#define EK_CHAT_BOS "\1"
#define EK_CHAT_EOS "\2"

typedef enum ek_chat_role {
    EK_CHAT_ROLE_SYSTEM,
    EK_CHAT_ROLE_USER,
    EK_CHAT_ROLE_ASSISTANT,
    EK_CHAT_ROLE_TOOL,
} ek_chat_role;
#define EK_CHAT_ROLES 4

typedef enum ek_chat_begin {
    EK_CHAT_BEGIN_FILE, /* BOS where the file wants one in front of every text */
    EK_CHAT_BEGIN_BOS,  /* BOS: the template writes it */
    EK_CHAT_BEGIN_NONE, /* none, or the turns bring their own */
} ek_chat_begin;

/**
 * Where system messages go. All but the first kind stand at the start; several become one, an empty
 * line apart.
 */
typedef enum ek_chat_system {
    EK_CHAT_SYSTEM_TURN,       /* turns of their own, anywhere */
    EK_CHAT_SYSTEM_START,      /* a turn of its own, before all others */
    EK_CHAT_SYSTEM_FIRST_USER, /* inside the first user turn, before what the user wrote */
    EK_CHAT_SYSTEM_LAST_USER,  /* inside the last one */
} ek_chat_system;

typedef enum ek_chat_trim {
    EK_CHAT_TRIM_NONE,
    EK_CHAT_TRIM_EACH,  /* white space around a message goes */
    EK_CHAT_TRIM_WHOLE, /* around the message together with a system text put before it */
} ek_chat_trim;

typedef struct ek_chat_turn {
    const char *before; /* NULL: the format has no place for this role */
    const char *after;
    ek_chat_trim trim;
} ek_chat_turn;

struct ek_chat_format {
    const char *name;
    ek_chat_begin begin;
    const char *opening; /* after BOS; NULL: nothing */
    ek_chat_system system;
    const char *default_system; /* where no system message comes first; NULL: nothing */
    ek_chat_turn turn[EK_CHAT_ROLES];
    const char *answer; /* what stands before the assistant's next answer; NULL: nothing */
};

/** All formats, in the order of ek_model_chat_list(). */
const ek_chat_format *ek_model_chat_formats(int32_t *out_n);

/** The format that a template writes; NULL: none of ours. */
const ek_chat_format *ek_model_chat_recognise(ek_str chat_template);

#endif
