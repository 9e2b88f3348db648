#include "link/expert_set.h"

#include <string.h>

#include "base/span.h"

void ek_link_set_add(ek_expert_set *set, int32_t layer, int32_t expert)
{
    size_t word = (size_t)layer * ek_link_set_words(set->n_experts) + (size_t)expert / 64;
    set->bits[word] |= (uint64_t)1 << (expert % 64);
}

void ek_link_set_remove(ek_expert_set *set, int32_t layer, int32_t expert)
{
    size_t word = (size_t)layer * ek_link_set_words(set->n_experts) + (size_t)expert / 64;
    set->bits[word] &= ~((uint64_t)1 << (expert % 64));
}

int32_t ek_link_set_count_layer(const ek_expert_set *set, int32_t layer)
{
    size_t words = ek_link_set_words(set->n_experts);
    int32_t n = 0;
    for (size_t w = 0; w < words; w++)
        n += __builtin_popcountll(set->bits[(size_t)layer * words + w]);
    return n;
}

int64_t ek_link_set_count(const ek_expert_set *set)
{
    int64_t n = 0;
    for (int32_t l = 0; l < set->n_layers; l++)
        n += ek_link_set_count_layer(set, l);
    return n;
}

bool ek_link_set_is_valid(const ek_expert_set *set)
{
    size_t words = ek_link_set_words(set->n_experts);
    int32_t used = set->n_experts % 64;
    if (used == 0) return true;
    uint64_t beyond = ~(uint64_t)0 << used;
    for (int32_t l = 0; l < set->n_layers; l++)
        if (set->bits[(size_t)l * words + words - 1] & beyond) return false;
    return true;
}

/* ---- text ---- */

typedef struct scanner {
    const char *at;
    const char *text; /* whole, for errors */
    ek_err *err;
} scanner;

static ek_status refuse(const scanner *s, const char *what)
{
    return ek_err_set(s->err, EK_EINVAL,
                      "experts \"%s\": at character %d: %s; write LAYERS:EXPERTS, as in "
                      "\"0-11:0-31,48\", or all",
                      s->text, (int)(s->at - s->text) + 1, what);
}

static bool take_number(scanner *s, int32_t *out_value)
{
    int32_t value = 0;
    const char *beg = s->at;
    for (; *s->at >= '0' && *s->at <= '9' && value < 1000000; s->at++)
        value = value * 10 + (*s->at - '0');
    *out_value = value;
    return s->at > beg;
}

/* The next number or range of a list below n; *out_more: a comma follows, and another one. */
static ek_status take_range(scanner *s, int32_t n, const char *too_high, int32_t *out_first,
                            int32_t *out_last, bool *out_more)
{
    if (*s->at == '*') {
        s->at++;
        *out_first = 0;
        *out_last = n - 1;
    } else {
        if (!take_number(s, out_first)) return refuse(s, "a number is missing");
        *out_last = *out_first;
        if (*s->at == '-') {
            s->at++;
            if (!take_number(s, out_last)) return refuse(s, "the end of a range is missing");
        }
        if (*out_last < *out_first) return refuse(s, "a range ends before it begins");
        if (*out_last >= n) return refuse(s, too_high);
    }
    *out_more = *s->at == ',';
    s->at += *out_more;
    return EK_OK;
}

static void add_block(ek_expert_set *set, int32_t layer_first, int32_t layer_last,
                      int32_t expert_first, int32_t expert_last)
{
    for (int32_t l = layer_first; l <= layer_last; l++)
        for (int32_t e = expert_first; e <= expert_last; e++)
            ek_link_set_add(set, l, e);
}

/* The experts behind a colon, for each of the layers before it. With a set of NULL only looks. */
static ek_status take_group(scanner *s, const ek_expert_set *shape, ek_expert_set *set)
{
    ek_status status = EK_OK;
    scanner layers = *s;
    const char *behind = s->at;
    bool more_layers = true, more;
    while (status == EK_OK && more_layers) {
        int32_t layer_first = 0, layer_last = 0, first = 0, last = 0;
        status = take_range(&layers, shape->n_layers, "the model has no such layer", &layer_first,
                            &layer_last, &more_layers);
        if (status != EK_OK) break;
        scanner experts = layers;
        if (more_layers) { /* its experts stand behind the layers that follow */
            experts.at += strcspn(experts.at, ": ;");
        }
        if (*experts.at != ':') return refuse(&experts, "a colon is missing");
        experts.at++;
        for (more = true; status == EK_OK && more;) {
            status = take_range(&experts, shape->n_experts, "a layer has no such expert", &first,
                                &last, &more);
            if (status == EK_OK && set) add_block(set, layer_first, layer_last, first, last);
        }
        behind = experts.at;
    }
    s->at = behind;
    return status;
}

static ek_status take_all(const char *text, const ek_expert_set *shape, ek_expert_set *set,
                          ek_err *err)
{
    scanner s = {.at = text, .text = text, .err = err};
    ek_status status = EK_OK;
    s.at += strspn(s.at, " ;");
    if (!*s.at) return refuse(&s, "no experts are named");
    while (status == EK_OK && *s.at) {
        status = take_group(&s, shape, set);
        if (status == EK_OK && *s.at && *s.at != ' ' && *s.at != ';')
            return refuse(&s, "this belongs to no group");
        s.at += status == EK_OK ? strspn(s.at, " ;") : 0;
    }
    return status;
}

ek_status ek_link_set_parse(const char *text, ek_expert_set *set, ek_err *err)
{
    if (strcmp(text, "all") == 0) {
        add_block(set, 0, set->n_layers - 1, 0, set->n_experts - 1);
        return EK_OK;
    }
    ek_status status = take_all(text, set, NULL, err); /* all or nothing */
    return status == EK_OK ? take_all(text, set, set, err) : status;
}
