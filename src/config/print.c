#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"

/* Double quotes everywhere: no text can be taken for something else by any YAML reader. */
static void print_quoted(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void print_key(const ek_config_key *key, const ek_config *config, FILE *out)
{
    char number[EK_CONFIG_VALUE_TEXT_MAX];
    if (key->type != EK_CONFIG_TEXT) {
        ek_config_value_print(key, config, number);
        fprintf(out, "  %s: %s\n", key->name, number);
        return;
    }
    const char *text = ek_config_value_text(key, config);
    if (!text) {
        fprintf(out, "  # %s is not set: %s\n", key->name, key->unset);
        return;
    }
    fprintf(out, "  %s: ", key->name);
    print_quoted(text, out);
    fputc('\n', out);
}

void ek_config_print(const ek_config *config, FILE *out)
{
    fprintf(out, "version: 1\n");
    for (int32_t s = 0; s < ek_config_n_sections; s++) {
        fprintf(out, "\n%s:\n", ek_config_sections[s].name);
        for (int32_t i = 0; i < ek_config_n_keys; i++)
            if (strcmp(ek_config_keys[i].section, ek_config_sections[s].name) == 0)
                print_key(&ek_config_keys[i], config, out);
    }
}

static void print_allowed(const ek_config_key *key, FILE *out)
{
    char range[EK_CONFIG_RANGE_TEXT_MAX], names[192];
    switch (key->type) {
    case EK_CONFIG_TEXT: fprintf(out, "text"); return;
    case EK_CONFIG_BOOL: fprintf(out, "`true`, `false`"); return;
    case EK_CONFIG_CHOICE:
        ek_config_choices_print(key, names, sizeof names);
        fprintf(out, "%s", names);
        return;
    case EK_CONFIG_INT:
    case EK_CONFIG_REAL:
    case EK_CONFIG_DURATION:
    case EK_CONFIG_SIZE:
        ek_config_range_print(key, range);
        fprintf(out, "%s", range);
        return;
    }
}

static void print_reference_row(const ek_config_key *key, FILE *out)
{
    fprintf(out, "| `%s` | ", key->name);
    print_allowed(key, out);
    if (key->default_value)
        fprintf(out, " | `%s` | ", key->default_value);
    else
        fprintf(out, " | not set: %s | ", key->unset);
    fprintf(out, "%s |\n", key->help);
}

void ek_config_print_reference(FILE *out)
{
    fprintf(
        out,
        "# Configuration\n\n"
        "<!-- Made by `evenkeel config reference` from src/config/schema.c; change it there. "
        "-->\n\n"
        "One YAML file, named by `--config FILE` or `EVENKEEL_CONFIG`. What is set nearer to the\n"
        "call wins: command-line flag, then environment, then file, then default. Every key is\n"
        "also the variable `EVENKEEL_<SECTION>_<KEY>` (`engine.threads` is\n"
        "`EVENKEEL_ENGINE_THREADS`) and `--set section.key=value`. `evenkeel check FILE` says\n"
        "whether a file is right, `evenkeel config show` what is in force.\n\n"
        "Unknown keys, duplicates, wrong types and values out of range are errors that name file,\n"
        "line and remedy. Durations are whole numbers with `us`, `ms`, `s`, `m`, `h` or `d`; "
        "sizes\n"
        "with `B`, `KiB`, `MiB`, `GiB` or `TiB`; other numbers may have decimals (`0.85`) where\n"
        "their default or range has. An empty text (`\"\"`) is the same as not set. Lists,\n"
        "anchors, tags and further documents are not used. `version: 1` at the top names this\n"
        "format, and may be left out.\n");
    for (int32_t s = 0; s < ek_config_n_sections; s++) {
        fprintf(out, "\n## %s\n\n%s\n\n", ek_config_sections[s].name, ek_config_sections[s].help);
        fprintf(out, "| key | values | default | meaning |\n|---|---|---|---|\n");
        for (int32_t i = 0; i < ek_config_n_keys; i++)
            if (strcmp(ek_config_keys[i].section, ek_config_sections[s].name) == 0)
                print_reference_row(&ek_config_keys[i], out);
    }
}
