/*
 * What an alert says: its evidence in numbers, and what to do next. For detect.c.
 */
#ifndef EK_TELEMETRY_DETECT_TEXT_H
#define EK_TELEMETRY_DETECT_TEXT_H

#include "telemetry/detect.h"

typedef struct ek_detect_shape {
    int32_t n_experts;
    int32_t top_k;
    int32_t n_windows;
} ek_detect_shape;

/** @param alert kind, layer, expert and limit are read */
void ek_telemetry_detect_evidence(const ek_alert *alert, const ek_reading *reading,
                                  const ek_detect_shape *shape, char out_text[EK_ALERT_TEXT_MAX]);

/** Routing first, then experts and replicas, more machines last; where numbers decide, they do. */
void ek_telemetry_detect_next_step(const ek_alert *alert, const ek_reading *reading,
                                   char out_text[EK_ALERT_TEXT_MAX]);

#endif
