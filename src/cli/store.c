#include "cli/store.h"

#include <stdio.h>
#include <stdlib.h>

#include "link/expert_set.h"

static const char *from_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && value[0] ? value : otherwise;
}

ek_store_access ek_cli_store_access(int32_t stall_s)
{
    return (ek_store_access){
        .aws_key_id = from_environment("AWS_ACCESS_KEY_ID", NULL),
        .aws_secret = from_environment("AWS_SECRET_ACCESS_KEY", NULL),
        .aws_token = from_environment("AWS_SESSION_TOKEN", NULL),
        .aws_region = from_environment("AWS_REGION", "us-east-1"),
        .aws_endpoint = from_environment("AWS_ENDPOINT_URL", NULL),
        .ca_file = from_environment("SSL_CERT_FILE", NULL),
        .stall_s = stall_s,
    };
}

ek_status ek_cli_manifest_open(const char *place, const ek_store_access *access,
                               ek_cli_manifest *out_manifest, ek_err *err)
{
    *out_manifest = (ek_cli_manifest){0};
    ek_status status =
        ek_store_read_text(place, EK_STORE_MANIFEST_BYTES_MAX, access, &out_manifest->text, err);
    if (status != EK_OK) return status;
    status = ek_sys_region_open(ek_store_manifest_perm_bytes_max(out_manifest->text.len), 0,
                                &out_manifest->region);
    if (status == EK_OK) {
        ek_arena perm = ek_sys_region_arena(&out_manifest->region);
        status = ek_store_manifest_parse(out_manifest->text, &perm, &out_manifest->manifest, err);
        if (status != EK_OK) ek_err_prefix(err, "%s", place);
    } else {
        ek_err_set(err, status, "%s: no memory for the manifest", place);
    }
    if (status != EK_OK) ek_cli_manifest_close(out_manifest);
    return status;
}

void ek_cli_manifest_close(ek_cli_manifest *manifest)
{
    ek_sys_free((void *)(uintptr_t)manifest->text.data);
    ek_sys_region_close(&manifest->region);
    *manifest = (ek_cli_manifest){0};
}

ek_status ek_cli_store_want(const ek_store_manifest *manifest, const char *experts, bool dense,
                            ek_store_want *out_want, uint64_t **out_bits, ek_err *err)
{
    *out_want = (ek_store_want){.dense = dense, .all = !experts && !dense};
    *out_bits = NULL;
    if (!experts) return EK_OK;
    ek_expert_set set = {
        .n_layers = manifest->n_layers,
        .n_experts = manifest->n_experts,
        .bits = ek_sys_calloc(1, ek_link_set_bytes(manifest->n_layers, manifest->n_experts)),
    };
    if (!set.bits) return ek_err_set(err, EK_ENOMEM, "no memory for a set of experts");
    ek_status status = ek_link_set_parse(experts, &set, err);
    if (status != EK_OK) {
        ek_sys_free(set.bits);
        return status;
    }
    out_want->experts = *out_bits = set.bits;
    return EK_OK;
}

void ek_cli_store_say_bytes(int64_t bytes, char *out_text, size_t room)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1000.0 && unit + 1 < EK_COUNT_OF(units); unit++)
        value /= 1000.0;
    snprintf(out_text, room, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}
