/*
 * A cluster's own certificate authority, and the certificates that it gives its nodes.
 *
 *     DIR/ca.pem, ca.key        the authority; the key stays where it was made
 *     DIR/NAME/ca.pem           what one node needs, to be copied to it and nowhere else:
 *     DIR/NAME/node.pem         its certificate
 *     DIR/NAME/node.key         its key
 *
 * Keys are P-256, files of keys can be read by their owner alone. A front's certificate is good for
 * calling; a worker's for being called, at the names and addresses it was made out to, and for
 * calling other workers, who know it for a worker's and do not take it for a front. So neither can
 * stand in for the other.
 */
#ifndef EK_LINK_CERTS_H
#define EK_LINK_CERTS_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

#define EK_CERTS_NAME_MAX  64
#define EK_CERTS_HOSTS_MAX 16 /* names and addresses of one node */

typedef enum ek_certs_role { EK_CERTS_FRONT, EK_CERTS_WORKER } ek_certs_role;

typedef struct ek_certs_node {
    ek_certs_role role;
    char name[EK_CERTS_NAME_MAX]; /* its folder, and the name that logs show */
    /* How a worker is called; without any, by its name. Borrowed. */
    char host[EK_CERTS_HOSTS_MAX][EK_CERTS_NAME_MAX];
    int32_t n_hosts;
} ek_certs_node;

/**
 * Read "NAME" or "NAME=HOST,HOST": letters, digits, '.', '-' and '_'; hosts are names or addresses.
 * @return EK_OK; EK_EINVAL, the text says what is wrong
 */
EK_MUST ek_status ek_link_certs_node_parse(const char *text, ek_certs_role role,
                                           ek_certs_node *out_node, ek_err *err);

/** An authority that can give certificates. */
typedef struct ek_certs_authority ek_certs_authority;

/**
 * Open the authority of a directory, or make one (and the directory) where there is none.
 * @param now_s, days of a new one: seconds since 1970, and how long it is valid
 * @return EK_OK; EK_EFORMAT one half is there or does not fit; EK_EACCESS; EK_EIO; EK_EINTERNAL
 */
EK_MUST ek_status ek_link_certs_open(const char *dir, int64_t now_s, int32_t days,
                                     ek_certs_authority **out_authority, ek_err *err);
/** Was it made just now? */
int ek_link_certs_is_new(const ek_certs_authority *authority);

/**
 * Give a node its folder: key, certificate, and the authority's certificate.
 * @param from_s, to_s  when it is valid, seconds since 1970
 * @param renew         replace what is there; else that is EK_EEXIST
 * @return EK_OK; EK_EEXIST; EK_EACCESS; EK_EIO; EK_EINTERNAL
 */
EK_MUST ek_status ek_link_certs_issue(const ek_certs_authority *authority,
                                      const ek_certs_node *node, int64_t from_s, int64_t to_s,
                                      int renew, ek_err *err);

/**
 * When a node's certificate ends.
 * @param dir   the node's folder
 * @param out_s seconds since 1970
 * @return EK_OK; EK_EFORMAT there is no certificate to read
 */
EK_MUST ek_status ek_link_certs_end(const char *dir, int64_t *out_s);

/** Accepts NULL. */
void ek_link_certs_close(ek_certs_authority *authority);

#endif
