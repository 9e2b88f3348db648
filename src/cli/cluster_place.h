/*
 * `evenkeel cluster place`: give a front a placement for its workers, and see how it goes.
 */
#ifndef EK_CLI_CLUSTER_PLACE_H
#define EK_CLI_CLUSTER_PLACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "cli/cluster_call.h"

#define EK_CLI_PLACING_NAMED_MAX 64

typedef struct ek_cli_placing {
    const char *path;                            /* of the placement; NULL: not said */
    const char *named[EK_CLI_PLACING_NAMED_MAX]; /* "host:port=1", as given */
    int32_t n_named;
    bool no_wait;
} ek_cli_placing;

/** Take a worker's device. @return false: it is none, and that has been said */
EK_MUST bool ek_cli_placing_device(ek_cli_placing *placing, const char *text);

/** @return exit code; what is wrong has been said */
EK_MUST int ek_cli_place_workers(const ek_cli_cluster_call *call, const ek_cli_placing *placing);

/** One line that tells of /v1/cluster's "placement"; none for null. */
void ek_cli_placing_print(const json_t *placement);

#endif
