/*
 * Goal: what changes something for everybody is for whoever shows an admin key or, where there is
 * none, for clients of this machine that speak for themselves; keys are read strictly and can be
 * exchanged. Method: files of keys and heads as text; then a gateway on a free port.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "gateway/admin.h"
#include "house.h"
#include "http/client.h"

#define KEY   "0123456789abcdef-A"
#define OTHER "fedcba9876543210-B"

static void reads_keys_strictly(void **state EK_UNUSED)
{
    ek_admin_keys keys;
    ek_err err;
    static const struct {
        const char *text;
        int32_t n;
    } good[] = {
        {KEY, 1},
        {KEY "\n", 1},
        {"# of the operators\n\n  " KEY " \t\r\n" OTHER, 2},
    };
    for (size_t i = 0; i < EK_COUNT_OF(good); i++) {
        assert_int_equal(ek_gateway_admin_parse(ek_str_from(good[i].text), &keys, &err), EK_OK);
        assert_int_equal(keys.n, good[i].n);
    }
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "no key"},
        {"# only this\n\n", "no key"},
        {"short\n", "line 1 is no key"},
        {KEY "\n\n012345678 9abcdef\n", "line 3 is no key"},
        {KEY "\x01", "line 1 is no key"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        assert_int_equal(ek_gateway_admin_parse(ek_str_from(bad[i].text), &keys, &err), EK_EINVAL);
        assert_non_null(strstr(err.text, bad[i].why));
        assert_null(strstr(err.text, "0123"));
    }
    static const char many[] = KEY "\n" KEY "\n" KEY "\n" KEY "\n" KEY "\n" KEY "\n" KEY "\n" KEY
                                   "\n" KEY; /* one more than EK_ADMIN_KEYS_MAX */
    assert_int_equal(ek_gateway_admin_parse(ek_str_from(many), &keys, &err), EK_EINVAL);
    char long_key[EK_ADMIN_KEY_BYTES_MAX + 2];
    memset(long_key, 'k', sizeof long_key);
    long_key[sizeof long_key - 1] = '\0';
    assert_int_equal(ek_gateway_admin_parse(ek_str_from(long_key), &keys, &err), EK_EINVAL);
}

/* @return the fault's code; NULL: it may administer */
static const char *ask(ek_admin *admin, const char *from, const char *fields)
{
    char text[512];
    ek_head head;
    static ek_fault fault;
    snprintf(text, sizeof text, "POST /v1/cluster/drain HTTP/1.1\r\nHost: a\r\n%s\r\n", fields);
    assert_int_equal(ek_http_head_parse(ek_str_from(text), &head, &fault), EK_OK);
    return ek_gateway_admin_check(admin, &head, from, &fault) ? NULL : fault.kind->code;
}

static void without_keys_only_this_machine(void **state EK_UNUSED)
{
    ek_admin admin = {0};
    ek_gateway_admin_init(&admin);
    static const char *const here[] = {"127.0.0.1", "127.8.0.1", "::1"};
    for (size_t i = 0; i < EK_COUNT_OF(here); i++)
        assert_null(ask(&admin, here[i], ""));
    static const char *const elsewhere[] = {"10.0.0.9", "192.0.2.127", "2001:db8::1", "12.7.0.1",
                                            "::"};
    for (size_t i = 0; i < EK_COUNT_OF(elsewhere); i++)
        assert_string_equal(ask(&admin, elsewhere[i], "Authorization: Bearer " KEY "\r\n"),
                            "ip_not_allowed");
    static const char *const passed_on[] = {"X-Forwarded-For: 10.0.0.9\r\n", "forwarded: for=x\r\n",
                                            "Via: 1.1 proxy\r\n", "X-Real-IP: 10.0.0.9\r\n",
                                            "Origin: http://127.0.0.1:8080\r\n"};
    for (size_t i = 0; i < EK_COUNT_OF(passed_on); i++)
        assert_string_equal(ask(&admin, "127.0.0.1", passed_on[i]), "ip_not_allowed");
    ek_gateway_admin_fini(&admin);
}

static void with_keys_whoever_shows_one(void **state EK_UNUSED)
{
    ek_admin admin = {0};
    ek_admin_keys keys;
    ek_err err;
    ek_gateway_admin_init(&admin);
    assert_int_equal(ek_gateway_admin_parse(EK_STR(KEY "\n" OTHER), &keys, &err), EK_OK);
    ek_gateway_admin_set(&admin, &keys);
    assert_null(ask(&admin, "10.0.0.9", "Authorization: Bearer " KEY "\r\n"));
    assert_null(ask(&admin, "10.0.0.9", "authorization: bearer   " OTHER "\r\n"));
    assert_null(ask(&admin, "10.0.0.9", "Via: 1.1 x\r\nAuthorization: Bearer " KEY "\r\n"));
    static const char *const missing[] = {"", "Authorization: Basic " KEY "\r\n",
                                          "Authorization: Bearer\r\n", "Authorization: " KEY "\r\n",
                                          "Authorization: Bearer " KEY
                                          "\r\nAuthorization: Bearer " KEY "\r\n"};
    for (size_t i = 0; i < EK_COUNT_OF(missing); i++)
        assert_string_equal(ask(&admin, "127.0.0.1", missing[i]), "missing_api_key");
    static const char *const wrong[] = {"Authorization: Bearer none\r\n",
                                        "Authorization: Bearer " KEY "x\r\n",
                                        "Authorization: Bearer 0123456789abcdef-a\r\n",
                                        "Authorization: Bearer " KEY "," OTHER "\r\n"};
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++)
        assert_string_equal(ask(&admin, "127.0.0.1", wrong[i]), "invalid_api_key");
    assert_int_equal(ek_gateway_admin_parse(EK_STR(OTHER), &keys, &err), EK_OK);
    ek_gateway_admin_set(&admin, &keys); /* the first one is withdrawn */
    assert_string_equal(ask(&admin, "127.0.0.1", "Authorization: Bearer " KEY "\r\n"),
                        "invalid_api_key");
    ek_gateway_admin_fini(&admin);
}

static reply drain(const house *h, const char *fields)
{
    char text[512];
    snprintf(text, sizeof text,
             "POST /v1/cluster/drain HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
             "Content-Length: 14\r\n%s\r\n{\"worker\":\"x\"}",
             fields);
    return request_raw(h->address, text);
}

/* There are no workers here, so whoever is let in is told 404. */
static void answers_with_the_conventions_statuses(void **state EK_UNUSED)
{
    house *h = house_make();
    ek_err err;
    house_open_gateway(h);
    reply r = drain(h, "");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    r = drain(h, "X-Forwarded-For: 10.0.0.9\r\n");
    assert_error(&r, 403, "ip_not_allowed", NULL);
    assert_non_null(strstr(r.body, "\"permission_error\""));
    reply_free(&r);
    assert_int_equal(ek_gateway_admin_keys(h->gateway, EK_STR(KEY), &err), EK_OK);
    assert_int_equal(ek_gateway_admin_keys(h->gateway, EK_STR("x"), &err), EK_EINVAL);
    r = drain(h, "");
    assert_error(&r, 401, "missing_api_key", NULL);
    assert_true(reply_header_is(&r, "WWW-Authenticate", "Bearer"));
    assert_non_null(strstr(r.body, "\"authentication_error\""));
    reply_free(&r);
    r = drain(h, "Authorization: Bearer " OTHER "\r\n");
    assert_error(&r, 401, "invalid_api_key", NULL);
    assert_true(reply_header_is(&r, "WWW-Authenticate", "Bearer"));
    assert_null(strstr(r.body, OTHER));
    reply_free(&r);
    r = drain(h, "Authorization: Bearer " KEY "\r\n");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    r = request_get(h->address, "/v1/cluster/resume"); /* a wrong method is no secret */
    assert_error(&r, 405, "method_not_allowed", NULL);
    reply_free(&r);
    r = request_get(h->address, "/v1/cluster"); /* looking is free */
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    assert_int_equal((int)house_metric(h, "evenkeel_http_requests_total{code=\"401\"}"), 2);
    assert_int_equal((int)house_metric(h, "evenkeel_http_requests_total{code=\"403\"}"), 1);
    house_end(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_keys_strictly),
        cmocka_unit_test(without_keys_only_this_machine),
        cmocka_unit_test(with_keys_whoever_shows_one),
        cmocka_unit_test(answers_with_the_conventions_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
