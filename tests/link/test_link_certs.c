#define _XOPEN_SOURCE 700 /* nftw */
/*
 * Goal: what `cluster init` makes is what TLS needs, keys are their owner's, an authority is used
 * again, and nothing is overwritten unasked. Method: a directory of its own, looked at through
 * OpenSSL and the file system.
 */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/attr.h"
#include "link/certs.h"

#define NOW_S INT64_C(1800000000)
#define DAY_S INT64_C(86400)

static char dir[32];

static int make_dir(void **state EK_UNUSED)
{
    snprintf(dir, sizeof dir, "/tmp/evenkeel-certs-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st EK_UNUSED, int flag EK_UNUSED,
                      struct FTW *ftw EK_UNUSED)
{
    return remove(path);
}

static int remove_dir(void **state EK_UNUSED)
{
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *in_dir(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static X509 *read_cert(const char *name)
{
    FILE *file = fopen(in_dir(name), "r");
    assert_non_null(file);
    X509 *cert = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    assert_non_null(cert);
    return cert;
}

static ek_certs_node node_of(const char *text, ek_certs_role role)
{
    ek_certs_node node;
    ek_err err = {0};
    if (ek_link_certs_node_parse(text, role, &node, &err) != EK_OK) fail_msg("%s", err.text);
    return node;
}

static ek_certs_authority *open_authority(void)
{
    ek_certs_authority *a = NULL;
    ek_err err = {0};
    if (ek_link_certs_open(dir, NOW_S, 100, &a, &err) != EK_OK) fail_msg("%s", err.text);
    return a;
}

static int mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(in_dir(name), &st), 0);
    return (int)(st.st_mode & 0777);
}

static void makes_what_tls_needs(void **state EK_UNUSED)
{
    ek_err err = {0};
    ek_certs_authority *a = open_authority();
    assert_true(ek_link_certs_is_new(a));
    const ek_certs_node worker = node_of("w0=worker-0.lan,10.0.0.5,fd00::5", EK_CERTS_WORKER);
    const ek_certs_node front = node_of("front", EK_CERTS_FRONT);
    assert_int_equal(ek_link_certs_issue(a, &worker, NOW_S, NOW_S + DAY_S, 0, &err), EK_OK);
    assert_int_equal(ek_link_certs_issue(a, &front, NOW_S, NOW_S + DAY_S, 0, &err), EK_OK);
    ek_link_certs_close(a);

    assert_int_equal(mode_of("ca.key"), 0600);
    assert_int_equal(mode_of("w0/node.key"), 0600);
    assert_int_equal(mode_of("w0"), 0700);
    X509 *ca = read_cert("ca.pem"), *w = read_cert("w0/node.pem"), *f = read_cert("front/node.pem");
    assert_int_equal(X509_check_ca(ca), 1);
    assert_int_equal(X509_check_ca(w), 0);
    assert_int_equal(X509_verify(w, X509_get0_pubkey(ca)), 1);
    assert_int_equal(X509_check_host(w, "worker-0.lan", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(w, "w0", 0, 0, NULL), 0);
    assert_int_equal(X509_check_ip_asc(w, "10.0.0.5", 0), 1);
    assert_int_equal(X509_check_ip_asc(w, "fd00::5", 0), 1);
    assert_int_equal(X509_check_ip_asc(w, "10.0.0.6", 0), 0);
    assert_int_equal(X509_check_host(f, "front", 0, 0, NULL), 1);
    assert_int_equal(X509_check_purpose(w, X509_PURPOSE_SSL_SERVER, 0), 1);
    assert_int_equal(X509_check_purpose(w, X509_PURPOSE_SSL_CLIENT, 0), 1); /* to other workers */
    assert_int_equal(X509_check_purpose(f, X509_PURPOSE_SSL_CLIENT, 0), 1);
    assert_int_equal(X509_check_purpose(f, X509_PURPOSE_SSL_SERVER, 0), 0);
    time_t late = (time_t)(NOW_S + DAY_S + 1), early = (time_t)(NOW_S - 1),
           then = (time_t)NOW_S + 1;
    assert_true(X509_cmp_time(X509_get0_notAfter(w), &late) < 0);
    assert_true(X509_cmp_time(X509_get0_notBefore(w), &early) > 0);
    assert_true(X509_cmp_time(X509_get0_notAfter(w), &then) > 0);
    assert_int_not_equal(ASN1_INTEGER_cmp(X509_get0_serialNumber(w), X509_get0_serialNumber(f)), 0);
    X509_free(ca);
    X509_free(w);
    X509_free(f);
}

static void tells_when_a_certificate_ends(void **state EK_UNUSED)
{
    int64_t end_s = 0;
    assert_int_equal(ek_link_certs_end(in_dir("w0"), &end_s), EK_OK); /* of the test before */
    assert_int_equal(end_s, NOW_S + DAY_S);
    assert_int_equal(ek_link_certs_end(in_dir("nobody"), &end_s), EK_EFORMAT);
    FILE *file = fopen(in_dir("node.pem"), "w"); /* in the authority's own folder */
    assert_non_null(file);
    fputs("-----BEGIN CERTIFICATE-----\nno\n", file);
    fclose(file);
    assert_int_equal(ek_link_certs_end(dir, &end_s), EK_EFORMAT);
    assert_int_equal(end_s, NOW_S + DAY_S);
    remove(in_dir("node.pem"));
}

static void keeps_what_is_there(void **state EK_UNUSED)
{
    ek_err err = {0};
    ek_certs_authority *a = open_authority();
    assert_false(ek_link_certs_is_new(a)); /* of the test before */
    const ek_certs_node worker = node_of("w0", EK_CERTS_WORKER);
    X509 *before = read_cert("w0/node.pem");
    assert_int_equal(ek_link_certs_issue(a, &worker, NOW_S, NOW_S + 1, 0, &err), EK_EEXIST);
    assert_non_null(strstr(err.text, "--renew"));
    X509 *same = read_cert("w0/node.pem");
    assert_int_equal(X509_cmp(before, same), 0);
    assert_int_equal(ek_link_certs_issue(a, &worker, NOW_S, NOW_S + 1, 1, &err), EK_OK);
    X509 *after = read_cert("w0/node.pem"), *ca = read_cert("ca.pem");
    assert_int_not_equal(X509_cmp(before, after), 0);
    assert_int_equal(X509_verify(after, X509_get0_pubkey(ca)), 1); /* by the same authority */
    ek_link_certs_close(a);
    X509_free(before);
    X509_free(same);
    X509_free(after);
    X509_free(ca);
}

static void does_not_go_on_with_half_an_authority(void **state EK_UNUSED)
{
    ek_err err = {0};
    ek_certs_authority *a = NULL;
    assert_int_equal(remove(in_dir("ca.key")), 0);
    assert_int_equal(ek_link_certs_open(dir, NOW_S, 100, &a, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "not both there"));
    assert_int_equal(ek_link_certs_open("/proc/nowhere", NOW_S, 100, &a, &err), EK_EIO);
}

static void refuses_names(void **state EK_UNUSED)
{
    static const char *const wrong[] = {
        "", "=host", "a/b", "..", "-x", "a=", "a=b,,", "a=b c", "n\xc3\xa4me", "ca.key", "a=*.lan"};
    ek_certs_node node;
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++) {
        ek_err err = {0};
        if (ek_link_certs_node_parse(wrong[i], EK_CERTS_WORKER, &node, &err) != EK_EINVAL)
            fail_msg("\"%s\" was taken", wrong[i]);
        assert_true(err.text[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_what_tls_needs),
        cmocka_unit_test(tells_when_a_certificate_ends),
        cmocka_unit_test(keeps_what_is_there),
        cmocka_unit_test(does_not_go_on_with_half_an_authority),
        cmocka_unit_test(refuses_names),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
