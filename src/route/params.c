#include "route/params.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

#define AT(field) offsetof(ek_route_params, field)
#define REAL_ROW(key, field, value, text, min, max, zero, read_by, help) \
    {#key, EK_ROUTE_PARAM_REAL, AT(field), value, min, max, zero, read_by, help},
#define COUNT_ROW(key, field, value, text, min, max, zero, read_by, help) \
    {#key, EK_ROUTE_PARAM_COUNT, AT(field), value, min, max, zero, read_by, help},
#define TIME_ROW(key, field, value, text, min, max, zero, read_by, help) \
    {#key,          EK_ROUTE_PARAM_TIME, AT(field), (double)(value),     \
     (double)(min), (double)(max),       zero,      read_by,             \
     help},

const ek_route_param ek_route_param_rows[] = {EK_ROUTE_PARAM_TABLE(REAL_ROW, COUNT_ROW, TIME_ROW)};
const int32_t ek_route_n_params = EK_COUNT_OF(ek_route_param_rows);

double ek_route_param_get(const ek_route_param *row, const ek_route_params *params)
{
    const char *field = (const char *)params + row->offset;
    double real;
    int32_t count;
    int64_t time_us;
    switch (row->type) {
    case EK_ROUTE_PARAM_REAL: memcpy(&real, field, sizeof real); return real;
    case EK_ROUTE_PARAM_COUNT: memcpy(&count, field, sizeof count); return count;
    case EK_ROUTE_PARAM_TIME: memcpy(&time_us, field, sizeof time_us); return (double)time_us;
    }
    return 0; /* a row of no type there is not */
}

void ek_route_param_set(const ek_route_param *row, double value, ek_route_params *params)
{
    char *field = (char *)params + row->offset;
    int32_t count = row->type == EK_ROUTE_PARAM_COUNT ? (int32_t)lround(value) : 0;
    int64_t time_us = row->type == EK_ROUTE_PARAM_TIME ? llround(value) : 0;
    switch (row->type) {
    case EK_ROUTE_PARAM_REAL: memcpy(field, &value, sizeof value); break;
    case EK_ROUTE_PARAM_COUNT: memcpy(field, &count, sizeof count); break;
    case EK_ROUTE_PARAM_TIME: memcpy(field, &time_us, sizeof time_us); break;
    }
}

void ek_route_params_default(ek_route_params *out_params)
{
    memset(out_params, 0, sizeof *out_params);
    out_params->policy = EK_ROUTE_POLICY_STATIC;
    for (int32_t i = 0; i < ek_route_n_params; i++)
        ek_route_param_set(&ek_route_param_rows[i], ek_route_param_rows[i].value, out_params);
}

static ek_status check_range(const ek_route_param *row, double value, ek_err *err)
{
    if (row->zero && value == 0) return EK_OK;
    if (value >= row->min && value <= row->max) return EK_OK; /* no NaN passes */
    return ek_err_set(err, EK_EINVAL, "routing.%s is %g; allowed are %g to %g%s%s%s", row->name,
                      value, row->min, row->max, row->type == EK_ROUTE_PARAM_TIME ? " us" : "",
                      row->zero ? ", or " : "", row->zero ? row->zero : "");
}

static ek_status check_breaker(const ek_breaker_params *b, ek_err *err)
{
    if (!(b->recover_load < b->derate_load && b->derate_load < b->trip_load))
        return ek_err_set(err, EK_EINVAL,
                          "routing.breaker_recover (%g), breaker_derate (%g) and breaker_trip (%g) "
                          "have to rise in this order",
                          b->recover_load, b->derate_load, b->trip_load);
    if (b->trip_weight > b->derate_weight)
        return ek_err_set(err, EK_EINVAL,
                          "routing.breaker_trip_weight (%g) is above breaker_derate_weight (%g)",
                          b->trip_weight, b->derate_weight);
    if (b->window_need > b->window || 2 * b->window_need <= b->window)
        return ek_err_set(err, EK_EINVAL,
                          "routing.breaker_window_need is %d; allowed are %d to %d, more than half "
                          "of breaker_window and at most all of it",
                          b->window_need, b->window / 2 + 1, b->window);
    if (b->open_us > b->open_max_us)
        return ek_err_set(err, EK_EINVAL, "routing.breaker_open is longer than breaker_open_max");
    return EK_OK;
}

ek_status ek_route_params_check(const ek_route_params *params, ek_err *err)
{
    if ((int)params->policy < 0 || (int)params->policy >= EK_ROUTE_N_POLICIES)
        return ek_err_set(err, EK_EINVAL, "routing policy %d is not known", (int)params->policy);
    uint32_t readers = EK_ROUTE_READ_BY(params->policy);
    if (params->capacity_factor != 0) readers |= EK_ROUTE_READ_CAPACITY;
    if (params->coalesce != 0) readers |= EK_ROUTE_READ_COALESCE;
    for (int32_t i = 0; i < ek_route_n_params; i++) {
        const ek_route_param *row = &ek_route_param_rows[i];
        if (!(row->read_by & readers)) continue;
        ek_status status = check_range(row, ek_route_param_get(row, params), err);
        if (status != EK_OK) return status;
    }
    if (readers & EK_ROUTE_READ_BREAKING) {
        ek_status status = check_breaker(&params->breaker, err);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}
