/* Compiles a recorded model: each segment becomes one operation, which takes the segment's time. Ranges of
 * memory that live as long as the recorded activations stand for the values of the operations. */
#include "common/nn/program_build.h"

#include <stdlib.h>

int nn_recording_gradients(const nn_recording *r)
{
    int count = 0;
    for (int i = 0; i < r->segment_count; i++) count += r->segments[i].ready_count;
    return count;
}

void nn_recording_free(nn_recording *r)
{
    if (!r) return;
    for (int i = 0; i < r->segment_count; i++) {
        free(r->segments[i].uses);
        free(r->segments[i].ready);
    }
    free(r->segments);
    free(r);
}

/* Scales what was recorded for one number of samples to the number of the program. */
static int64_t scaled(const build *b, int64_t recorded)
{
    int64_t of = b->model->recording->batch, batch = b->program->config.batch;
    return batch == of ? recorded : (int64_t)((double)recorded * (double)batch / (double)of + 0.5);
}

static void emit(build *b, const nn_segment *s)
{
    nn_program *p = b->program;
    p->ops[p->op_count++] = (nn_op){.desc = {.kind = OP_recorded,
                                             .type = p->config.type,
                                             .u.recorded = {.batch = p->config.batch,
                                                            .kernel_ns = scaled(b, s->kernel_ns),
                                                            .idle_ns = s->idle_ns,
                                                            .ranks = b->model->recording->ranks,
                                                            .arithmetic = s->arithmetic,
                                                            .traffic = s->traffic}},
                                    .weight_param = NN_NONE};
}

/* Adds a range of memory that is in use from operation `first` to operation `last`. */
static int add_value(nn_program *p, int64_t bytes, int first, int last)
{
    p->values[p->value_count] = (nn_value){.shape = shape_1d(bytes),
                                           .type = p->config.type,
                                           .bytes = bytes,
                                           .ledger_class = LEDGER_ACTIVATIONS,
                                           .first = first,
                                           .last = last};
    return p->value_count++;
}

/* Ends the lifetimes of the youngest values, `bytes` bytes in all, after operation `op`. Splits the last of
 * them if only a part of it ends. `stack` [*count] has the values that live. */
static void end_values(nn_program *p, int *stack, int *count, int64_t bytes, int op)
{
    while (bytes > 0 && *count > 0) {
        nn_value *v = &p->values[stack[*count - 1]];
        if (v->bytes > bytes) {
            add_value(p, bytes, v->first, op);
            v->bytes -= bytes;
            return;
        }
        v->last = op;
        bytes -= v->bytes;
        --*count;
    }
}

/* Gives the operations values, so that as many bytes live during and after each operation as in its
 * segment. */
static status make_values(build *b)
{
    nn_program *p = b->program;
    const nn_segment *segments = b->model->recording->segments;
    int *stack = calloc((size_t)p->op_count + 1, sizeof *stack), count = 0;
    if (!stack) return fail(STATUS_SYSTEM, "no memory to compile model %s", b->model->name);
    int64_t live = 0;
    for (int i = 0; i < p->op_count; i++) {
        int64_t after = scaled(b, segments[i].live_bytes), most = scaled(b, segments[i].peak_bytes);
        bool keeps = p->config.mode == NN_TRAIN; /* the backward pass reads what a segment keeps */
        if (!keeps) {
            if (most > live) add_value(p, most - live, i, i);
            live = after;
            continue;
        }
        int64_t held = after > live ? after : live;
        if (after > live) {
            stack[count++] = p->value_count;
            add_value(p, after - live, i, p->op_count - 1);
        }
        if (most > held) add_value(p, most - held, i, i);
        end_values(p, stack, &count, live - after, i);
        live = after;
    }
    free(stack);
    /* The values above hold the output and its gradient. If another rank computes the loss, it sends the
     * gradient, for which the engine counts the memory, and the first operation of the backward pass frees
     * it. */
    bool sent = p->config.external_loss && p->loss_end < p->op_count;
    int64_t outputs = p->config.batch * b->model->rows_per_sample * b->model->classes;
    p->output_value = add_value(p, 0, p->forward_end - 1, p->forward_end - 1);
    p->output_gradient_value =
        add_value(p, sent ? outputs * dtype_size(p->config.type) : 0, p->loss_end, p->loss_end);
    p->values[p->output_gradient_value].ledger_class = LEDGER_OUTPUTS;
    return STATUS_OK;
}

status build_recorded(build *b)
{
    nn_program *p = b->program;
    const nn_recording *r = b->model->recording;
    for (int i = 0; i < r->forward_count; i++) emit(b, &r->segments[i]);
    p->forward_end = p->op_count;
    for (int i = 0; i < r->loss_count; i++) emit(b, &r->segments[p->op_count]);
    p->loss_end = p->op_count;
    while (p->op_count < r->segment_count && p->config.mode == NN_TRAIN) emit(b, &r->segments[p->op_count]);
    return make_values(b);
}
