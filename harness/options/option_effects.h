/* The table of options of `run` that are refused or have no effect, by engine and device. The program
 * refuses options and writes notes by this table, and makes `harness run --help=effects` and
 * docs/options.md from it. Every other option must change a field of the results, which
 * tests/commands/test_option_effects.py checks. */
#ifndef HARNESS_OPTIONS_OPTION_EFFECTS_H
#define HARNESS_OPTIONS_OPTION_EFFECTS_H

#include "harness/options/run_options.h"

/* Columns of the table. Each policy of the parameter server counts as an engine, and --plan as a device. */
typedef enum effect_engine {
    EFFECT_NO_ENGINE,
    EFFECT_RING,
    EFFECT_SYNC,
    EFFECT_SSP,
    EFFECT_ASYNC,
    EFFECT_DP,
    EFFECT_ENGINES
} effect_engine;
typedef enum effect_device {
    EFFECT_CPU,
    EFFECT_REFERENCE,
    EFFECT_CUDA,
    EFFECT_SIM,
    EFFECT_PLAN,
    EFFECT_DEVICES
} effect_device;

typedef enum effect_kind {
    EFFECT_REFUSED,     /* refused with STATUS_USAGE; `text` names the expected value */
    EFFECT_UNAVAILABLE, /* refused with STATUS_CONFIG; `text` names the expected value */
    EFFECT_REFUSED_BY_ENGINE,
    EFFECT_UNAVAILABLE_TO_ENGINE, /* like REFUSED and UNAVAILABLE, but the engine reads and refuses the value
                                   */
    EFFECT_NOTHING                /* `text` gives the reason */
} effect_kind;

typedef struct option_effect {
    const char *options;       /* names, separated by blanks */
    unsigned engines, devices; /* sets of columns */
    effect_kind kind;
    const char *text;
} option_effect;

/* Returns the row of an option, or NULL if the option has an effect. */
const option_effect *option_effect_of(const char *option, effect_engine engine, effect_device device);

/* Refuses an option that the device does not have, if the user gave it a value that differs from its default.
 * Returns STATUS_USAGE or STATUS_CONFIG. */
status option_effects_check_device(const run_config *c);
/* Refuses an option that no engine of the run has, if the user gave it a value that differs from its default.
 * Returns STATUS_USAGE or STATUS_CONFIG. */
status option_effects_check_engines(const run_config *c);
/* Logs a line on stderr for each option that was given and has no effect in this run. */
void option_effects_note(const run_config *c);

/* Appends the table as Markdown. */
void option_effects_text(const option_binding *bindings, size_t count, text_buffer *out);

#endif
