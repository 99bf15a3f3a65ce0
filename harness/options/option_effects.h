/* The table of options of `run` that are refused or have no effect, by engine and device. The program
 * refuses options and writes notes by this table, and makes `harness run --help=effects` and
 * docs/options.md from it. Every other option must change a field of the results, which
 * tests/commands/test_option_effects.py checks. */
#ifndef HARNESS_OPTIONS_OPTION_EFFECTS_H
#define HARNESS_OPTIONS_OPTION_EFFECTS_H

#include "harness/options/run_options.h"

/* Refuses an option that the device does not have, if the user gave it a value that differs from its default.
 * Returns STATUS_USAGE or STATUS_CONFIG. */
status option_effects_check_device(const run_config *c);
/* Refuses an option that no engine of the run has, if the user gave it a value that differs from its default.
 * Returns STATUS_USAGE or STATUS_CONFIG. */
status option_effects_check_engines(const run_config *c);
/* Logs a line on stderr for each option that was given and has no effect in this run. */
void option_effects_note(const run_config *c);

/* Does the same for the options that no engine uses in a plan, except --quiet and --log-level. */
void option_effects_note_plan(const run_config *c);

/* Appends the table as Markdown. */
void option_effects_text(const option_binding *bindings, size_t count, text_buffer *out);

#endif
