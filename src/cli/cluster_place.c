#include "cli/cluster_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/exit.h"
#include "cli/placement.h"
#include "place/place.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define TABLE_BYTES ((size_t)1 << 30) /* of address space: the largest placement */
#define LOOK_US     200000

#define NAME_MAX_BYTES 256
#define DEVICE_MAX     1023

/* ---- what is sent ---- */

/* "host:port=1" -> a worker's address and its device. @return false: it is no such text */
static bool split(const char *text, char out_worker[NAME_MAX_BYTES], int32_t *out_device)
{
    const char *equals = strrchr(text, '=');
    char *end;
    if (!equals || equals == text || equals - text >= NAME_MAX_BYTES) return false;
    long device = strtol(equals + 1, &end, 10);
    if (end == equals + 1 || *end || device < 0 || device > DEVICE_MAX) return false;
    snprintf(out_worker, NAME_MAX_BYTES, "%.*s", (int)(equals - text), text);
    *out_device = (int32_t)device;
    return true;
}

bool ek_cli_placing_device(ek_cli_placing *placing, const char *text)
{
    char worker[NAME_MAX_BYTES];
    int32_t device;
    if (!split(text, worker, &device) || placing->n_named == EK_CLI_PLACING_NAMED_MAX) {
        ek_cli_fail(EK_EXIT_USAGE,
                    "cluster place: --device-of takes HOST:PORT=N, for %d workers at most, not "
                    "'%.100s'",
                    EK_CLI_PLACING_NAMED_MAX, text);
        return false;
    }
    placing->named[placing->n_named++] = text;
    return true;
}

static json_t *devices_of(const ek_cli_placing *placing)
{
    json_t *devices = json_object();
    for (int32_t i = 0; i < placing->n_named; i++) {
        char worker[NAME_MAX_BYTES];
        int32_t device;
        if (split(placing->named[i], worker, &device)) /* it was taken before */
            json_object_set_new(devices, worker, json_integer(device));
    }
    return devices;
}

/* {"placement": [[...], ...], "devices": {...}}; owned by the caller; NULL: no memory */
static char *write_body(const ek_cli_placing *placing, const ek_place_table *table)
{
    json_t *layers = json_array();
    for (int32_t l = 0; l < table->n_rows; l++) {
        json_t *layer = json_array();
        for (int32_t s = 0; s < table->n_columns; s++) {
            double expert = table->value[(int64_t)l * table->n_columns + s];
            json_array_append_new(layer, json_integer((json_int_t)expert));
        }
        json_array_append_new(layers, layer);
    }
    json_t *root = json_pack("{s:o, s:o}", "placement", layers, "devices", devices_of(placing));
    size_t n = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    char *body = n > 0 ? ek_sys_calloc(n + 1, 1) : NULL;
    if (body) (void)!json_dumpb(root, body, n, JSON_COMPACT);
    json_decref(root);
    return body;
}

/* ---- what comes of it ---- */

/* {"placement": {...}} of an answer; owned by the caller. */
static json_t *placement_of(ek_cli_http_reply *reply)
{
    ek_str text = ek_cli_text_str(&reply->body);
    json_t *root = json_loadb(text.data, text.len, 0, NULL);
    json_t *placement = json_incref(json_object_get(root, "placement"));
    json_decref(root);
    ek_cli_text_free(&reply->body);
    return placement;
}

static bool is_state(const json_t *placement, const char *state)
{
    return strcmp(ek_cli_cluster_text(placement, "state"), state) == 0;
}

static void print_progress(const json_t *p)
{
    printf("layer %.0f of %.0f, %.0f of %.0f acquired, %.0f of %.0f released",
           ek_cli_cluster_number(p, "layer"), ek_cli_cluster_number(p, "layers"),
           ek_cli_cluster_number(p, "acquired"), ek_cli_cluster_number(p, "acquire"),
           ek_cli_cluster_number(p, "released"), ek_cli_cluster_number(p, "release"));
}

void ek_cli_placing_print(const json_t *p)
{
    if (!json_is_object(p)) return;
    printf("placement %.0f: %s, ", ek_cli_cluster_number(p, "number"),
           ek_cli_cluster_text(p, "state"));
    if (is_state(p, "moving"))
        print_progress(p);
    else
        printf("%.0f of %.0f acquired, %.0f of %.0f released", ek_cli_cluster_number(p, "acquired"),
               ek_cli_cluster_number(p, "acquire"), ek_cli_cluster_number(p, "released"),
               ek_cli_cluster_number(p, "release"));
    if (ek_cli_cluster_text(p, "why")[0]) printf("; %s", ek_cli_cluster_text(p, "why"));
    printf("\n");
}

static int end(const ek_cli_cluster_call *call, double number, const json_t *p)
{
    if (ek_cli_cluster_number(p, "number") != number)
        return ek_cli_fail(EK_EXIT_FAILURE, "%s: another placement was given meanwhile", call->url);
    if (!is_state(p, "done"))
        return ek_cli_fail(EK_EXIT_FAILURE, "%s: the placement has failed: %s", call->url,
                           ek_cli_cluster_text(p, "why"));
    printf("placed: %.0f acquired, %.0f released in %.1f s\n", ek_cli_cluster_number(p, "acquired"),
           ek_cli_cluster_number(p, "released"), ek_cli_cluster_number(p, "seconds"));
    return EK_EXIT_OK;
}

/* Look until it has ended; a line for each layer that something is done in. */
static int watch(const ek_cli_cluster_call *call, json_t *p)
{
    double number = ek_cli_cluster_number(p, "number"), layer = -1;
    int code = EK_EXIT_OK;
    while (code == EK_EXIT_OK && is_state(p, "moving") &&
           ek_cli_cluster_number(p, "number") == number) {
        if (ek_cli_cluster_number(p, "layer") != layer) {
            print_progress(p);
            printf("\n");
            fflush(stdout);
        }
        layer = ek_cli_cluster_number(p, "layer");
        ek_sys_sleep_us(LOOK_US);
        ek_cli_http_reply reply;
        json_decref(p);
        p = NULL;
        code = ek_cli_cluster_get(call, &reply);
        if (code == EK_EXIT_OK) p = placement_of(&reply);
    }
    if (code == EK_EXIT_OK) code = end(call, number, p);
    json_decref(p);
    return code;
}

static int place_table(const ek_cli_cluster_call *call, const ek_cli_placing *placing,
                       const ek_place_table *table)
{
    ek_cli_http_reply reply;
    char *body = write_body(placing, table);
    if (!body) return ek_cli_fail(EK_EXIT_MEMORY, "no memory for the placement");
    int code = ek_cli_cluster_post(call, "/v1/cluster/place", body, &reply);
    ek_sys_free(body);
    if (code != EK_EXIT_OK) return code;
    json_t *p = placement_of(&reply);
    printf("%s: %.0f replicas to acquire, %.0f to release\n", placing->path,
           ek_cli_cluster_number(p, "acquire"), ek_cli_cluster_number(p, "release"));
    if (!placing->no_wait) return watch(call, p);
    json_decref(p);
    return EK_EXIT_OK;
}

int ek_cli_place_workers(const ek_cli_cluster_call *call, const ek_cli_placing *placing)
{
    ek_sys_region region;
    ek_place_table table;
    ek_err err = {0};
    if (!placing->path)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster place: say which file has the placement");
    if (ek_sys_region_open(TABLE_BYTES, 0, &region) != EK_OK)
        return ek_cli_fail(EK_EXIT_MEMORY, "no memory for the placement");
    ek_arena perm = ek_sys_region_arena(&region);
    ek_status status = ek_cli_table_read(placing->path, EK_PLACE_EMPTY, true, &perm, &table, &err);
    int code = status == EK_OK ? place_table(call, placing, &table) : ek_cli_fail_err(&err);
    ek_sys_region_close(&region);
    return code;
}
