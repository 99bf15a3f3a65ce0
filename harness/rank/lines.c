/* The lines that ranks print while they train: the loss of each epoch, evaluations, saved files, and the
 * lines of --print-steps and --print-shapes. Prints nothing with --json -, because stdout then has only the
 * result. */
#include "harness/rank/state.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool rank_prints(const rank_state *s)
{
    const char *json = s->config->run.json;
    return s->place->job != JOB_ISOLATED && s->place->job != JOB_ALL_CORES &&
           (!json || strcmp(json, "-") != 0);
}

void rank_print(const rank_state *s, const char *format, ...)
{
    char line[PATH_MAX + 128];
    va_list arguments;
    if (!rank_prints(s)) return;
    size_t used = (size_t)snprintf(line, sizeof line, "%s ", job_name(s->place->job));
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = strlen(line);
    line[used++] = '\n';
    /* One call per line keeps lines of several ranks apart. A closed stdout must not end the training. */
    ssize_t written = write(STDOUT_FILENO, line, used);
    (void)written;
}

/* Formats [count, dimensions of a sample], in PyTorch's order. */
static char *format_shape(char *buffer, size_t size, int64_t count, shape sample)
{
    bool image = sample.rank == 3;
    size_t used = (size_t)snprintf(buffer, size, "[%lld", (long long)count);
    for (int i = 0; i < sample.rank && used < size; i++) {
        int from = !image ? i : i == 0 ? 2 : i - 1;
        used += (size_t)snprintf(buffer + used, size - used, ", %lld", (long long)sample.dims[from]);
    }
    if (used < size) snprintf(buffer + used, size - used, "]");
    return buffer;
}

static void print_shapes(rank_state *s, const rank_device *d, int64_t samples)
{
    const nn_model *m = s->model;
    char input[96], output[96];
    bool split = trainer_has_one_loss(d->trainer);
    shape in = m->layers[0].sample, out = m->layers[m->output].sample;
    if (samples == s->printed_samples) return;
    s->printed_samples = samples;
    rank_print(s, "rank %d: input %s, output %s in the model", s->place->rank,
               format_shape(input, sizeof input, samples, in),
               format_shape(output, sizeof output, samples, out));
    if (split && s->place->rank == 0)
        rank_print(s, "rank 0: input %s, output %s outside, of all replicas",
                   format_shape(input, sizeof input, samples * s->place->world, in),
                   format_shape(output, sizeof output, samples * s->place->world, out));
}

void rank_print_step(rank_state *s, const rank_device *d, const step_result *r)
{
    const run_options *o = &s->config->run;
    int64_t reduced_ns = r->reduced_ns > r->backward_end_ns ? r->reduced_ns : r->backward_end_ns;
    double forward_s = 1e-9 * (double)(r->forward_end_ns - r->forward_begin_ns),
           backward_s = 1e-9 * (double)(reduced_ns - r->backward_begin_ns);
    char loss[40] = "";
    if (o->print_shapes) print_shapes(s, d, r->samples / o->accumulate);
    if (!o->print_steps || d->number != 0) return;
    if (!isnan(r->loss)) snprintf(loss, sizeof loss, " loss=%.4f", r->loss);
    rank_print(s, "iteration %lld%s: time=%.6fs fp_time=%.6fs bp_time=%.6fs%s", (long long)r->index,
               s->world->simulated_ranks > 0 ? " (simulated)" : "", forward_s + backward_s, forward_s,
               backward_s, loss);
}
