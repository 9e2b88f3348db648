#include "gateway/routes.h"

#include "gateway/handlers.h"

#define ENGINE true
#define WORK   true
#define WORKER true
#define HEALTH true
#define ADMIN  true

static const ek_route routes[] = {
    /* path, method, needs engine, is work, on a worker, on the health daemon, admin, handler */
    {"/v1/chat/completions", EK_METHOD_POST, ENGINE, WORK, WORKER, false, false,
     ek_gateway_run_chat},
    {"/v1/completions", EK_METHOD_POST, ENGINE, WORK, WORKER, false, false,
     ek_gateway_run_completion},
    {"/v1/models", EK_METHOD_GET, false, false, false, false, false, ek_gateway_run_models},
    {"/v1/models/*", EK_METHOD_GET, false, false, false, false, false, ek_gateway_run_model},
    {"/v1/experts", EK_METHOD_GET, ENGINE, false, WORKER, false, false, ek_gateway_run_experts},
    {"/v1/cluster", EK_METHOD_GET, false, false, WORKER, false, false, ek_gateway_run_cluster},
    {"/v1/cluster/drain", EK_METHOD_POST, false, false, WORKER, false, ADMIN,
     ek_gateway_run_cluster_drain},
    {"/v1/cluster/resume", EK_METHOD_POST, false, false, WORKER, false, ADMIN,
     ek_gateway_run_cluster_resume},
    {"/v1/cluster/acquire", EK_METHOD_POST, false, false, WORKER, false, ADMIN,
     ek_gateway_run_cluster_acquire},
    {"/v1/cluster/release", EK_METHOD_POST, false, false, WORKER, false, ADMIN,
     ek_gateway_run_cluster_release},
    {"/v1/cluster/place", EK_METHOD_POST, false, false, WORKER, false, ADMIN,
     ek_gateway_run_cluster_place},
    {"/tokenize", EK_METHOD_POST, ENGINE, WORK, WORKER, false, false, ek_gateway_run_tokenize},
    {"/detokenize", EK_METHOD_POST, ENGINE, WORK, WORKER, false, false, ek_gateway_run_detokenize},
    {"/health", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_ready},
    {"/health/live", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_live},
    {"/health/ready", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_ready},
    {"/livez", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_live},
    {"/liveness", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_live},
    {"/readyz", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_ready},
    {"/readiness", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_ready},
    {"/version", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_version},
    {"/load", EK_METHOD_GET, false, false, false, HEALTH, false, ek_gateway_run_load},
    {"/props", EK_METHOD_GET, ENGINE, false, false, false, false, ek_gateway_run_props},
    {"/metrics", EK_METHOD_GET, false, false, WORKER, HEALTH, false, ek_gateway_run_metrics},
    {"/", EK_METHOD_GET, false, false, false, false, false, ek_gateway_run_page},
    {"/page/*", EK_METHOD_GET, false, false, false, false, false, ek_gateway_run_page},
};

static bool path_matches(const ek_route *route, ek_str path, ek_str *out_tail)
{
    ek_str pattern = ek_str_from(route->path);
    if (pattern.data[pattern.len - 1] != '*') {
        *out_tail = (ek_str){0};
        return ek_str_eq(path, pattern);
    }
    pattern.len--;
    if (!ek_str_starts(path, pattern) || path.len == pattern.len) return false;
    *out_tail = (ek_str){path.data + pattern.len, path.len - pattern.len};
    return true;
}

static bool method_matches(const ek_route *route, ek_str method)
{
    if (route->method == EK_METHOD_POST) return ek_str_eqz(method, "POST");
    return ek_str_eqz(method, "GET") || ek_str_eqz(method, "HEAD");
}

const ek_route *ek_gateway_route_find(ek_str path, ek_str method, bool health_only,
                                      ek_str *out_tail, const char **out_allow)
{
    *out_allow = NULL;
    for (size_t i = 0; i < EK_COUNT_OF(routes); i++) {
        const ek_route *route = &routes[i];
        if (health_only && !route->on_health) continue;
        if (!path_matches(route, path, out_tail)) continue;
        if (method_matches(route, method)) return route;
        *out_allow = route->method == EK_METHOD_POST ? "POST" : "GET, HEAD";
    }
    return NULL;
}
