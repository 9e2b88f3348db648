#include "config/suggest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "config/schema.h"

#define NAMES_MAX 384 /* bytes of a list of names in an error */

/* Whether a key is one of those that a name in `section` could have meant; -1 takes all. */
static bool in_section(const ek_config_key *key, int32_t section)
{
    return section < 0 || strcmp(key->section, ek_config_sections[section].name) == 0;
}

static void list_names(int32_t section, char out_names[NAMES_MAX])
{
    size_t len = 0;
    out_names[0] = '\0';
    int32_t n = section < 0 ? ek_config_n_sections : ek_config_n_keys;
    for (int32_t i = 0; i < n && len < NAMES_MAX; i++) {
        if (section >= 0 && !in_section(&ek_config_keys[i], section)) continue;
        const char *name = section < 0 ? ek_config_sections[i].name : ek_config_keys[i].name;
        int put = snprintf(out_names + len, NAMES_MAX - len, "%s%s", len ? ", " : "", name);
        len += put > 0 ? (size_t)put : 0;
    }
}

static void full_name(const ek_config_key *key, char out_name[EK_NEAREST_WORD_MAX])
{
    snprintf(out_name, EK_NEAREST_WORD_MAX, "%s.%s", key->section, key->name);
}

/* The nearest of a section's keys (-1: of all), by "section.key" where `whole`; or NULL. */
static const ek_config_key *nearest_key(ek_str name, int32_t section, bool whole)
{
    char full[EK_CONFIG_KEYS_MAX][EK_NEAREST_WORD_MAX];
    ek_nearest nearest = ek_nearest_start(name);
    const ek_config_key *best = NULL;
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        if (!in_section(key, section)) continue;
        const char *before = nearest.name;
        full_name(key, full[i]);
        ek_nearest_offer(&nearest, whole ? full[i] : key->name);
        if (nearest.name != before) best = key;
    }
    return best;
}

static const char *nearest_section(ek_str name)
{
    ek_nearest nearest = ek_nearest_start(name);
    for (int32_t i = 0; i < ek_config_n_sections; i++)
        ek_nearest_offer(&nearest, ek_config_sections[i].name);
    /* A file's other top-level word; it is no key that --set could change. */
    if (!ek_str_eqz(name, "version")) ek_nearest_offer(&nearest, "version");
    return nearest.name;
}

/*
 * What the name was probably meant to be: a key of the section it stands in, a section, or the
 * right word in the wrong place. False when nothing is near.
 */
static bool suggest(int32_t section, ek_str name, char out_name[EK_NEAREST_WORD_MAX])
{
    bool whole = ek_str_contains(name, EK_STR("."));
    const char *near_section = section < 0 && !whole ? nearest_section(name) : NULL;
    const ek_config_key *own = section >= 0 ? nearest_key(name, section, false) : NULL;
    const ek_config_key *any = nearest_key(name, -1, whole);
    bool is_exact = any && ek_str_eq(name, (ek_str){any->name, strlen(any->name)});
    if (near_section && !is_exact)
        snprintf(out_name, EK_NEAREST_WORD_MAX, "%s", near_section);
    else if (own && !is_exact)
        snprintf(out_name, EK_NEAREST_WORD_MAX, "%s", own->name);
    else if (any)
        full_name(any, out_name);
    else
        return false;
    return true;
}

ek_status ek_config_refuse_name(int32_t section, ek_str name, ek_err *err)
{
    char names[NAMES_MAX], where[64] = "", near_name[EK_NEAREST_WORD_MAX];
    ek_str shown = {name.data, name.len < EK_NEAREST_WORD_MAX ? name.len : EK_NEAREST_WORD_MAX};
    int32_t named = section < 0 ? ek_config_section_find(name) : -1;
    if (named >= 0) {
        list_names(named, names);
        return ek_err_set(err, EK_ECONFIG, "%s is a section; name one of its keys: %s",
                          ek_config_sections[named].name, names);
    }
    if (section >= 0) snprintf(where, sizeof where, " in %s", ek_config_sections[section].name);
    if (suggest(section, name, near_name))
        return ek_err_set(err, EK_ECONFIG, "unknown key \"%.*s\"%s; did you mean %s?",
                          EK_STR_ARG(shown), where, near_name);
    list_names(section, names);
    return ek_err_set(err, EK_ECONFIG, "unknown key \"%.*s\"%s; known are %s", EK_STR_ARG(shown),
                      where, names);
}
