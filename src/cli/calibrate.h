/*
 * evenkeel calibrate, shared by its parts: calibrate.c (options), calibrate_states.c (recording and
 * measuring), calibrate_gates.c (gates and overlays), calibrate_run.c (rounds and layers),
 * calibrate_save.c (checkpoints), calibrate_report.c and calibrate_inspect.c (what people read).
 * One thread.
 */
#ifndef EK_CLI_CALIBRATE_H
#define EK_CLI_CALIBRATE_H

#include <stdio.h>

#include "cli/corpus.h"
#include "cli/progress.h"
#include "expert/model_file.h"
#include "kernels/kernels.h"
#include "sys/file.h"
#include "sys/library.h"
#include "sys/mem.h"
#include "tune/states.h"
#include "tune/tuner.h"

#define EK_CALIBRATE_RESET_MAX 64

typedef struct ek_cli_calibrate_options {
    const char *model_path;
    const char *text_path[EK_CORPUS_FILES_MAX];
    int32_t n_texts;
    const char *states_path;  /* NULL: recorded from the texts */
    const char *overlay_path; /* gates to begin with; NULL: the model's own */
    const char *out_path;
    const char *checkpoint_path; /* NULL: none is kept */
    const char *log_path;        /* CSV of every look; NULL: none */
    ek_kernels_choice kernels;
    int64_t n_threads;
    int64_t n_tokens;     /* of a recording, at most; 0: what memory allows */
    int64_t chunk_tokens; /* 0: the model's context, at most 512 */
    int64_t n_rounds;
    double mend;
    ek_tune_params tune;
    int32_t reset[EK_CALIBRATE_RESET_MAX];
    int32_t n_reset;
    bool json;
} ek_cli_calibrate_options;

/** All layers' gates. */
typedef struct ek_cli_calibrate_gates {
    int32_t n_layers, n_experts, d_model;
    float *found;         /* (n_layers, n_experts, d) as the model or its overlay has them */
    float *found_bias;    /* (n_layers, n_experts) */
    double *weight;       /* (n_layers, n_experts, d) as they are now */
    double *bias;         /* (n_layers, n_experts) */
    bool *has_bias;       /* (n_layers) found with one */
    bool *uses_bias;      /* (n_layers) has one now */
    ek_sys_region region; /* owned */
} ek_cli_calibrate_gates;

/** What a model does with the texts that are kept back. */
typedef struct ek_cli_calibrate_measure {
    int64_t *counts; /* (n_layers, n_experts) token-slots; owned */
    double loss;     /* nats, of n_predicted tokens */
    int64_t n_predicted;
} ek_cli_calibrate_measure;

#define EK_CALIBRATE_MENDED_MAX 8 /* experts that are named */

/** One layer's result. Holds no pointers: checkpoints keep it as it lies. */
typedef struct ek_cli_calibrate_layer {
    ek_tune_report report;  /* of the last round */
    ek_gate_figures before; /* the gate as it was found, on the states that are kept back */
    ek_gate_figures after;
    double gradient_norm_max; /* of all rounds */
    int32_t n_mended;
    int32_t mended[EK_CALIBRATE_MENDED_MAX]; /* the first of them */
} ek_cli_calibrate_layer;

typedef struct ek_cli_calibration {
    const ek_cli_calibrate_options *options;
    ek_model_file *file; /* with the overlay to begin with, if there is one */
    char fingerprint[EK_SHA256_HEX_BYTES];
    ek_route_gate gate;
    ek_cli_corpus corpus;
    ek_sys_region states_region; /* a recording of our own */
    ek_sys_map states_map;       /* or one from a file */
    ek_states states;
    ek_kernels kernels;
    ek_sys_library blas; /* owned */
    ek_gemm_fn gemm;     /* of it */
    ek_cli_calibrate_gates gates;
    ek_cli_calibrate_measure before, after;
    bool measured;                  /* there were texts to measure on */
    ek_cli_calibrate_layer *layers; /* (n_layers) */
    double *variance_before;        /* (n_layers, n_experts) of experts' outputs */
    double *variance_after;
    ek_sys_region layers_region; /* owned */
    int64_t round;               /* from 0 */
    int signal;                  /* that asked to end; 0: none did */
    ek_cli_progress progress;
    FILE *log; /* NULL: none */
} ek_cli_calibration;

/** Open model, texts or states, and gates. @return EK_OK; what opening gave */
EK_MUST ek_status ek_cli_calibrate_open(const ek_cli_calibrate_options *options,
                                        ek_cli_calibration *c, ek_err *err);
void ek_cli_calibrate_close(ek_cli_calibration *c);

/** Has a signal asked to end? What is under way is then finished up and given up. */
bool ek_cli_calibrate_interrupted(ek_cli_calibration *c);

/* calibrate_states.c */

/**
 * Compute all chunks with `file`: record a sample of tokens into c->states, and measure those that
 * are kept back.
 * @param measure NULL: no logits are computed
 * @return EK_OK; EK_ENOMEM; EK_ECANCELED a signal came; what the engine gave
 */
EK_MUST ek_status ek_cli_calibrate_record(ek_cli_calibration *c, const ek_model_file *file,
                                          ek_cli_calibrate_measure *measure, ek_err *err);
/** Measure only. @return as ek_cli_calibrate_record */
EK_MUST ek_status ek_cli_calibrate_measure_run(ek_cli_calibration *c, const ek_model_file *file,
                                               ek_cli_calibrate_measure *measure, ek_err *err);

/* calibrate_gates.c */

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_cli_calibrate_gates_open(const ek_model *model,
                                              ek_cli_calibrate_gates *out_gates, ek_err *err);
/** A layer's gate as it was found, for ek_tune_problem_make. */
ek_gate_setup ek_cli_calibrate_setup(const ek_cli_calibration *c, int32_t layer);
/** Write an overlay of all gates. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_calibrate_gates_write(const ek_cli_calibration *c, const char *path,
                                               ek_err *err);

/* calibrate_save.c */

/**
 * Keep what is done: all gates, the round, and the layer under way.
 * @param tuner NULL: the layer has not begun
 * @return EK_OK; EK_ENOMEM; what writing gave
 */
EK_MUST ek_status ek_cli_calibrate_save(const ek_cli_calibration *c, int32_t layer,
                                        const ek_tuner *tuner, ek_err *err);

/** A checkpoint that was read. */
typedef struct ek_cli_calibrate_saved {
    ek_str bytes;         /* owned; empty: there is none */
    int32_t layer;        /* under way, or about to begin */
    const uint8_t *tuner; /* state of the layer under way; NULL: it has not begun */
    size_t tuner_bytes;
} ek_cli_calibrate_saved;

/**
 * Read the checkpoint and take its gates over; a file that is not there gives an empty one.
 * @return EK_OK; EK_EFORMAT damaged; EK_EINVAL of another model or other options
 */
EK_MUST ek_status ek_cli_calibrate_restore(ek_cli_calibration *c, ek_cli_calibrate_saved *out_saved,
                                           ek_err *err);

/* The commands, with everything opened; they say what is wrong and return the exit code. */
int ek_cli_calibrate_run(ek_cli_calibration *c);
int ek_cli_calibrate_inspect(ek_cli_calibration *c);

/* calibrate_report.c */
void ek_cli_calibrate_print(const ek_cli_calibration *c);
void ek_cli_calibrate_print_json(const ek_cli_calibration *c);
void ek_cli_calibrate_log_head(FILE *log);
void ek_cli_calibrate_log_look(const ek_cli_calibration *c, int32_t layer,
                               const ek_tune_report *report);

#endif
