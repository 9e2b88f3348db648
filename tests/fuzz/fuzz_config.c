/*
 * Fuzz target of the configuration: any bytes are read as a file, as `--set key=value` and as an
 * environment variable.
 *
 * Besides not crashing, these have to hold: what is refused changes nothing and says where and why
 * in one printable line; what is accepted prints as a file that reads back as the same
 * configuration.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_BYTES ((size_t)1 << 16)
#define TEXT_MAX    4096 /* bytes taken for a key and value; longer inputs are cut */

static void demand(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

/* The configuration as a file, in heap memory. */
static char *print(const ek_config *config)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    demand(out != NULL, "no memory");
    ek_config_print(config, out);
    fclose(out);
    return text;
}

static void check_refusal(ek_status status, const ek_config *before, const ek_config *after,
                          const ek_err *err)
{
    demand(status == EK_ECONFIG || status == EK_ENOMEM, "a status that nobody expects");
    demand(memcmp(before, after, sizeof *before) == 0, "a refused setting has an effect");
    demand(err->text[0] != '\0', "a refusal without a reason");
    for (const char *c = err->text; *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f, "a control character in an error");
}

static void check_reads_back(const ek_config *config)
{
    static uint8_t memory[ARENA_BYTES];
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    ek_config again;
    ek_err err = {0};
    char *text = print(config);
    ek_config_defaults(&again);
    ek_status status = ek_config_parse(ek_str_from(text), "printed", &perm, &again, &err);
    demand(status == EK_OK, err.text);
    char *second = print(&again);
    demand(strcmp(text, second) == 0, "what is printed reads back differently");
    free(text);
    free(second);
}

static void as_file(const uint8_t *data, size_t size)
{
    static uint8_t memory[ARENA_BYTES];
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    ek_config config, before;
    ek_err err = {0};
    ek_config_defaults(&config);
    before = config;
    ek_str text = {(const char *)data, size};
    ek_status status = ek_config_parse(text, "fuzz", &perm, &config, &err);
    if (status == EK_OK) {
        check_reads_back(&config);
        return;
    }
    check_refusal(status, &before, &config, &err);
    int line = 0;
    demand(sscanf(err.text, "fuzz:%d: ", &line) == 1 && line >= 1, "a refusal without a line");
}

/* The input up to its first '=' or line end is the key, the rest the value. */
static void as_setting(const char *text)
{
    static uint8_t memory[ARENA_BYTES];
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    char key[TEXT_MAX + 1];
    size_t len = strcspn(text, "=\n");
    memcpy(key, text, len);
    key[len] = '\0';
    const char *value = text[len] ? text + len + 1 : text + len;
    ek_config config, before;
    ek_err err = {0};
    ek_config_defaults(&config);
    before = config;
    ek_status status = ek_config_set(key, value, "--set", &perm, &config, &err);
    if (status == EK_OK)
        check_reads_back(&config);
    else
        check_refusal(status, &before, &config, &err);
}

static void as_variable(const char *text)
{
    static uint8_t memory[ARENA_BYTES];
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    char variable[TEXT_MAX + 16];
    snprintf(variable, sizeof variable, "EVENKEEL_%s", text);
    char *const list[] = {variable, NULL};
    ek_config config, before;
    ek_err err = {0};
    ek_config_defaults(&config);
    before = config;
    ek_status status = ek_config_env(list, &perm, &config, &err);
    if (status == EK_OK)
        check_reads_back(&config);
    else
        check_refusal(status, &before, &config, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MAX + 1];
    size_t len = size < TEXT_MAX ? size : TEXT_MAX;
    if (len > 0) memcpy(text, data, len);
    text[len] = '\0';
    as_file(data, size);
    as_setting(text);
    as_variable(text);
    return 0;
}
