/*
 * Prompts of a lab: texts from files, or those that come with the program, as rows of token ids
 * from which prompts of one length are cut. Read only once they are open.
 */
#ifndef EK_CLI_LAB_PROMPTS_H
#define EK_CLI_LAB_PROMPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "lab/schedule.h"
#include "model/tokenizer.h"

/** Texts of one kind, as one row of token ids behind each other. */
typedef struct ek_cli_lab_texts {
    int32_t *id; /* (n + a prompt's length) owned; its beginning comes once more at the end */
    int64_t n, room;
    int64_t *beg; /* (n_texts) owned: where each text begins */
    int32_t n_texts, texts_room;
} ek_cli_lab_texts;

typedef struct ek_cli_lab_prompts {
    ek_cli_lab_texts kind[EK_LAB_N_KINDS];
    int32_t n_prompt; /* tokens of each */
    bool bundled;     /* all of them are those that come with the program */
} ek_cli_lab_prompts;

/**
 * Read texts; kinds that no file has get the bundled ones.
 * @param paths JSON lines with "lang" (zh, en, code), "domain" and "text", "turns" or "messages"
 * @return EK_OK; EK_ENOMEM; EK_EFORMAT, or what reading gave: the text names file and line
 */
EK_MUST ek_status ek_cli_lab_prompts_open(const ek_tokenizer *tokenizer, const char *const *paths,
                                          int32_t n_paths, int32_t n_prompt,
                                          ek_cli_lab_prompts *out_prompts, ek_err *err);
/** Accepts a zeroed one. */
void ek_cli_lab_prompts_close(ek_cli_lab_prompts *prompts);

/** Token ids (n_prompt) of a text of that kind, and what follows it where it is shorter. */
const int32_t *ek_cli_lab_prompt(const ek_cli_lab_prompts *prompts, ek_lab_kind kind,
                                 uint64_t draw);

#endif
