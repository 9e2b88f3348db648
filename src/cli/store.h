/*
 * What the manifest and fetch commands share: a manifest as it was named, which experts are meant,
 * and how servers are reached.
 */
#ifndef EK_CLI_STORE_H
#define EK_CLI_STORE_H

#include "cli/progress.h"
#include "store/carrier.h"
#include "store/manifest.h"
#include "sys/mem.h"

/** From the environment: AWS_*, SSL_CERT_FILE. Borrowed from it. */
ek_store_access ek_cli_store_access(int32_t stall_s);

/** A manifest that was read. */
typedef struct ek_cli_manifest {
    ek_store_manifest manifest;
    ek_str text;          /* owned */
    ek_sys_region region; /* owned; what the manifest lies in */
} ek_cli_manifest;

/**
 * Read a manifest from a path, "-" or a URL.
 * @return EK_OK; as ek_store_read_text and ek_store_manifest_parse; the text begins with the place
 */
EK_MUST ek_status ek_cli_manifest_open(const char *place, const ek_store_access *access,
                                       ek_cli_manifest *out_manifest, ek_err *err);
/** Accepts a zeroed one. */
void ek_cli_manifest_close(ek_cli_manifest *manifest);

/**
 * What --experts and --dense mean; neither: everything.
 * @param experts    as link/expert_set.h reads it; NULL: none named
 * @param out_bits   owned by the caller, ek_sys_free; NULL: no experts named
 * @return EK_OK; EK_EINVAL; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_store_want(const ek_store_manifest *manifest, const char *experts,
                                    bool dense, ek_store_want *out_want, uint64_t **out_bits,
                                    ek_err *err);

/** "1.5 MB": bytes as people write them. */
void ek_cli_store_say_bytes(int64_t bytes, char *out_text, size_t room);

#endif
