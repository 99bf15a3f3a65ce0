/* Where an option of `run` is refused or has no effect: by engine and device. By this table options are
 * refused, notes are written, and `harness run --help=effects` and docs/options.md are made. Everywhere else
 * an option must change a field of the results, which tests/commands/test_option_effects.py looks at. */
#ifndef HARNESS_RUN_OPTION_EFFECTS_H
#define HARNESS_RUN_OPTION_EFFECTS_H

#include "harness/run/run_options.h"

/* The columns: engines, of which the parameter server's policies count as one each; devices, of which --plan
 * counts as one. */
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
    EFFECT_REFUSED,     /* with STATUS_USAGE; `text`: what is expected instead */
    EFFECT_UNAVAILABLE, /* refused with STATUS_CONFIG; the same */
    EFFECT_REFUSED_BY_ENGINE,
    EFFECT_UNAVAILABLE_TO_ENGINE, /* likewise, by the engine, which looks at the value */
    EFFECT_NOTHING                /* `text`: why */
} effect_kind;

typedef struct option_effect {
    const char *options;       /* names, with blanks between */
    unsigned engines, devices; /* sets of columns */
    effect_kind kind;
    const char *text;
} option_effect;

/* NULL: the option has an effect there. */
const option_effect *option_effect_of(const char *option, effect_engine engine, effect_device device);

/* STATUS_USAGE or STATUS_CONFIG where an option was given, with another value than its default, that the
 * device refuses. */
status option_effects_check_device(const run_config *c);
/* The same for the engines of the run, where none of them has an effect. */
status option_effects_check_engines(const run_config *c);
/* One line on stderr for each option that was given and has no effect in this run. */
void option_effects_note(const run_config *c);

/* The table as Markdown. */
void option_effects_text(const option_binding *bindings, size_t count, text_buffer *out);

#endif
