/*
 * Calls to a front about its workers (/v1/cluster), as the verbs of `evenkeel cluster` make them.
 */
#ifndef EK_CLI_CLUSTER_CALL_H
#define EK_CLI_CLUSTER_CALL_H

#include <jansson.h>

#include "base/attr.h"
#include "cli/http.h"

typedef struct ek_cli_cluster_call {
    const char *url;            /* of the front */
    const char *admin_key_file; /* NULL: the environment's key, or none */
} ek_cli_cluster_call;

/**
 * GET /v1/cluster.
 * @param out_reply of a 200; its body is the caller's, ek_cli_text_free
 * @return exit code; what is wrong has been said
 */
EK_MUST int ek_cli_cluster_get(const ek_cli_cluster_call *call, ek_cli_http_reply *out_reply);

/** POST with the admin key, where there is one. @return as above */
EK_MUST int ek_cli_cluster_post(const ek_cli_cluster_call *call, const char *path, const char *body,
                                ek_cli_http_reply *out_reply);

/** A text of an answer; "" where there is none. */
const char *ek_cli_cluster_text(const json_t *object, const char *key);
/** A number of an answer; 0 where there is none. */
double ek_cli_cluster_number(const json_t *object, const char *key);

#endif
