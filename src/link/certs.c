#include "link/certs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "sys/file.h"
#include "sys/mem.h"

#define PATH_BYTES 4096
#define DAY_S      INT64_C(86400)

struct ek_certs_authority {
    char dir[PATH_BYTES - 256];
    EVP_PKEY *key; /* owned */
    X509 *cert;    /* owned */
    int is_new;
};

/* ---- names ---- */

static bool is_name(const char *text, size_t n, bool is_host)
{
    if (n == 0 || n >= EK_CERTS_NAME_MAX || text[0] == '.' || text[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_' || (is_host && c == ':');
        if (!ok) return false;
    }
    return true;
}

ek_status ek_link_certs_node_parse(const char *text, ek_certs_role role, ek_certs_node *out_node,
                                   ek_err *err)
{
    ek_certs_node node = {.role = role};
    size_t n = strcspn(text, "=");
    if (!is_name(text, n, false))
        return ek_err_set(
            err, EK_EINVAL,
            "\"%.64s\" is no node's name: up to %d letters, digits, '.', '-' and '_', "
            "and behind a '=' the hosts that it is called by",
            text, EK_CERTS_NAME_MAX - 1);
    memcpy(node.name, text, n);
    if (strcmp(node.name, "ca.pem") == 0 || strcmp(node.name, "ca.key") == 0)
        return ek_err_set(err, EK_EINVAL, "\"%s\" is what the authority's own file is called",
                          node.name);
    for (const char *at = text + n; *at; at += n) {
        at++;
        n = strcspn(at, ",");
        if (!is_name(at, n, true) || node.n_hosts == EK_CERTS_HOSTS_MAX)
            return ek_err_set(err, EK_EINVAL,
                              "node %s: \"%.*s\" is no host name or address (at most %d of them)",
                              node.name, (int)(n < 64 ? n : 64), at, EK_CERTS_HOSTS_MAX);
        memcpy(node.host[node.n_hosts++], at, n);
    }
    *out_node = node;
    return EK_OK;
}

/* ---- files ---- */

static ek_status failed(ek_err *err, const char *path, const char *doing)
{
    int code = errno;
    ek_status status = code == EACCES || code == EPERM ? EK_EACCESS : EK_EIO;
    return ek_err_set(err, status, "%s: cannot %s: %s", path, doing, strerror(code));
}

static ek_status library_failed(ek_err *err)
{
    unsigned long code = ERR_get_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return ek_err_set(err, EK_EINTERNAL, "no certificate can be made: %s",
                      why ? why : "OpenSSL does not say why");
}

static ek_status make_folder(const char *path, ek_err *err)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return EK_OK;
    return failed(err, path, "make the directory");
}

/* A whole file, made with its mode from the start: a key is never readable by others, not even
 * for a moment. It takes the old one's place when it is complete. */
static ek_status write_file(const char *path, mode_t mode, BIO *bytes, ek_err *err)
{
    char temporary[PATH_BYTES];
    char *data;
    long n = BIO_get_mem_data(bytes, &data);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return failed(err, path, "write");
    bool ok = write(fd, data, (size_t)n) == n && fsync(fd) == 0;
    ok = close(fd) == 0 && ok && rename(temporary, path) == 0;
    if (ok) return EK_OK;
    ek_status status = failed(err, path, "write");
    unlink(temporary);
    return status;
}

static ek_status write_key(const char *path, EVP_PKEY *key, ek_err *err)
{
    BIO *bytes = BIO_new(BIO_s_secmem());
    ek_status status = EK_OK;
    if (!bytes || PEM_write_bio_PKCS8PrivateKey(bytes, key, NULL, NULL, 0, NULL, NULL) != 1)
        status = library_failed(err);
    else
        status = write_file(path, 0600, bytes, err);
    BIO_free(bytes);
    return status;
}

static ek_status write_cert(const char *path, X509 *cert, ek_err *err)
{
    BIO *bytes = BIO_new(BIO_s_mem());
    ek_status status = EK_OK;
    if (!bytes || PEM_write_bio_X509(bytes, cert) != 1)
        status = library_failed(err);
    else
        status = write_file(path, 0644, bytes, err);
    BIO_free(bytes);
    return status;
}

/* ---- certificates ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = extension && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool set_serial(X509 *cert)
{
    uint8_t bytes[16];
    if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
    bytes[0] = (uint8_t)((bytes[0] & 0x7f) | 0x40); /* positive, and of full length */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool ok = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return ok;
}

/* A certificate for a key with name and time; its extensions and signature are still missing. */
static X509 *cert_new(EVP_PKEY *key, const char *name, X509 *issuer, int64_t from_s, int64_t to_s)
{
    X509 *cert = X509_new();
    if (!cert) return NULL;
    X509_NAME *subject = X509_get_subject_name(cert);
    bool ok = X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) &&
              ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)from_s) != NULL &&
              ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)to_s) != NULL &&
              X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name,
                                         -1, -1, 0) == 1 &&
              X509_set_issuer_name(cert, issuer ? X509_get_subject_name(issuer) : subject) == 1 &&
              X509_set_pubkey(cert, key) == 1;
    if (ok) return cert;
    X509_free(cert);
    return NULL;
}

static ek_status make_authority(ek_certs_authority *a, int64_t now_s, int32_t days, ek_err *err)
{
    char path[PATH_BYTES];
    uint32_t number = 0;
    char name[64];
    if (RAND_bytes((uint8_t *)&number, sizeof number) != 1) return library_failed(err);
    snprintf(name, sizeof name, "evenkeel cluster authority %08x", (unsigned)number);
    a->key = EVP_EC_gen("P-256");
    if (a->key) a->cert = cert_new(a->key, name, NULL, now_s - DAY_S, now_s + days * DAY_S);
    if (!a->cert ||
        !add_extension(a->cert, a->cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !add_extension(a->cert, a->cert, NID_key_usage, "critical,keyCertSign,cRLSign") ||
        !add_extension(a->cert, a->cert, NID_subject_key_identifier, "hash") ||
        X509_sign(a->cert, a->key, EVP_sha256()) == 0)
        return library_failed(err);
    snprintf(path, sizeof path, "%s/ca.key", a->dir);
    ek_status status = write_key(path, a->key, err);
    snprintf(path, sizeof path, "%s/ca.pem", a->dir);
    if (status == EK_OK) status = write_cert(path, a->cert, err);
    a->is_new = status == EK_OK;
    return status;
}

static ek_status read_authority(ek_certs_authority *a, ek_err *err)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/ca.pem", a->dir);
    BIO *file = BIO_new_file(path, "r");
    if (file) a->cert = PEM_read_bio_X509(file, NULL, NULL, NULL);
    BIO_free(file);
    snprintf(path, sizeof path, "%s/ca.key", a->dir);
    file = BIO_new_file(path, "r");
    if (file) a->key = PEM_read_bio_PrivateKey(file, NULL, NULL, NULL);
    BIO_free(file);
    ERR_clear_error();
    if (a->cert && a->key && X509_check_private_key(a->cert, a->key) == 1) return EK_OK;
    return ek_err_set(err, EK_EFORMAT,
                      "%s: ca.pem and ca.key are not both there and a pair; move away what is left "
                      "of them, or restore the other",
                      a->dir);
}

ek_status ek_link_certs_open(const char *dir, int64_t now_s, int32_t days,
                             ek_certs_authority **out_authority, ek_err *err)
{
    if (strlen(dir) >= sizeof(((ek_certs_authority *)0)->dir))
        return ek_err_set(err, EK_EIO, "%.64s...: the path is too long", dir);
    ek_certs_authority *a = ek_sys_calloc(1, sizeof *a);
    if (!a) return ek_err_set(err, EK_ENOMEM, "no memory for an authority");
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    char cert[PATH_BYTES], key[PATH_BYTES];
    snprintf(cert, sizeof cert, "%s/ca.pem", dir);
    snprintf(key, sizeof key, "%s/ca.key", dir);
    ek_status status = make_folder(dir, err);
    if (status == EK_OK)
        status = ek_sys_file_exists(cert) || ek_sys_file_exists(key)
                     ? read_authority(a, err)
                     : make_authority(a, now_s, days, err);
    if (status != EK_OK) {
        ek_link_certs_close(a);
        return status;
    }
    *out_authority = a;
    return EK_OK;
}

int ek_link_certs_is_new(const ek_certs_authority *authority)
{
    return authority->is_new;
}

void ek_link_certs_close(ek_certs_authority *authority)
{
    if (!authority) return;
    EVP_PKEY_free(authority->key);
    X509_free(authority->cert);
    ek_sys_free(authority);
}

/* ---- nodes ---- */

/* "DNS:worker-0,IP:10.0.0.5" */
static void alternative_names(const ek_certs_node *node, char *out_text, size_t bytes)
{
    size_t n = 0;
    out_text[0] = '\0';
    for (int32_t i = 0; i < (node->n_hosts ? node->n_hosts : 1); i++) {
        const char *host = node->n_hosts ? node->host[i] : node->name;
        uint8_t ip[16];
        bool is_ip = inet_pton(AF_INET, host, ip) == 1 || inet_pton(AF_INET6, host, ip) == 1;
        int added =
            snprintf(out_text + n, bytes - n, "%s%s:%s", i ? "," : "", is_ip ? "IP" : "DNS", host);
        ek_assert(added > 0 && (size_t)added < bytes - n); /* hosts have a bound */
        n += (size_t)added;
    }
}

static X509 *node_cert(const ek_certs_authority *a, const ek_certs_node *node, EVP_PKEY *key,
                       int64_t from_s, int64_t to_s)
{
    char names[EK_CERTS_HOSTS_MAX * (EK_CERTS_NAME_MAX + 8)];
    alternative_names(node, names, sizeof names);
    X509 *cert = cert_new(key, node->name, a->cert, from_s, to_s);
    bool ok =
        cert && add_extension(cert, a->cert, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(cert, a->cert, NID_key_usage, "critical,digitalSignature") &&
        add_extension(cert, a->cert, NID_ext_key_usage,
                      node->role == EK_CERTS_WORKER ? "serverAuth,clientAuth" : "clientAuth") &&
        add_extension(cert, a->cert, NID_subject_alt_name, names) &&
        add_extension(cert, a->cert, NID_authority_key_identifier, "keyid") &&
        X509_sign(cert, a->key, EVP_sha256()) != 0;
    if (ok) return cert;
    X509_free(cert);
    return NULL;
}

ek_status ek_link_certs_issue(const ek_certs_authority *authority, const ek_certs_node *node,
                              int64_t from_s, int64_t to_s, int renew, ek_err *err)
{
    char folder[PATH_BYTES - 64], path[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s/%s", authority->dir, node->name);
    snprintf(path, sizeof path, "%s/node.pem", folder);
    if (!renew && ek_sys_file_exists(path))
        return ek_err_set(err, EK_EEXIST, "%s is there already; --renew replaces it", path);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = key ? node_cert(authority, node, key, from_s, to_s) : NULL;
    ek_status status = cert ? make_folder(folder, err) : library_failed(err);
    snprintf(path, sizeof path, "%s/ca.pem", folder);
    if (status == EK_OK) status = write_cert(path, authority->cert, err);
    snprintf(path, sizeof path, "%s/node.key", folder);
    if (status == EK_OK) status = write_key(path, key, err);
    snprintf(path, sizeof path, "%s/node.pem", folder);
    if (status == EK_OK) status = write_cert(path, cert, err);
    X509_free(cert);
    EVP_PKEY_free(key);
    return status;
}

ek_status ek_link_certs_end(const char *dir, int64_t *out_s)
{
    char path[PATH_BYTES];
    int days = 0, seconds = 0;
    snprintf(path, sizeof path, "%s/node.pem", dir);
    BIO *file = BIO_new_file(path, "r");
    X509 *cert = file ? PEM_read_bio_X509(file, NULL, NULL, NULL) : NULL;
    ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
    bool ok =
        cert && epoch && ASN1_TIME_diff(&days, &seconds, epoch, X509_get0_notAfter(cert)) == 1;
    ASN1_TIME_free(epoch);
    X509_free(cert);
    BIO_free(file);
    ERR_clear_error();
    if (!ok) return EK_EFORMAT;
    *out_s = days * DAY_S + seconds;
    return EK_OK;
}
