/* ps_exchange [--model NAME] [--ranks N] [--steps N] [parameter-server options]: measures how long the
 * exchange of gradients and parameters takes in a step without any computation. Ranks are processes. The time
 * is from the first gradient that is ready to the arrival of the last parameter. Prints one line: median,
 * quartiles and minimum of the slowest rank's times over the steps, and the bytes that the links carried per
 * step. */
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/net/status_table.h"
#include "models/models.h"
#include "ps/policy.h"
#include "ps/ps.h"
#include "tests/ps/processes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 3 };

typedef struct bench_options {
    const char *model;
    int64_t ranks, steps, inline_progress;
} bench_options;

#define FIELD(name) offsetof(bench_options, name)
static const option bench_option_list[] = {
    {.name = "model",
     .argument = "NAME",
     .type = OPTION_TEXT,
     .offset = FIELD(model),
     .initial = "resnet18",
     .help = "whose parameters are exchanged; images of 32x32, 10 classes"},
    {.name = "ranks",
     .argument = "N",
     .type = OPTION_INT,
     .offset = FIELD(ranks),
     .initial = "2",
     .low = 1,
     .high = PROCESSES_MAX,
     .help = "processes"},
    {.name = "steps",
     .argument = "N",
     .type = OPTION_INT,
     .offset = FIELD(steps),
     .initial = "30",
     .low = 1,
     .high = PROCESS_FIGURES - 8,
     .help = "steps to time"},
    {.name = "inline",
     .argument = "0|1",
     .type = OPTION_INT,
     .offset = FIELD(inline_progress),
     .initial = "0",
     .high = 1,
     .help = "without a communication thread of the rank"},
};
static const option_table bench_option_table = {"Bench", bench_option_list,
                                                sizeof bench_option_list / sizeof bench_option_list[0]};

typedef struct bench {
    bench_options options;
    ps_options ps;
    nn_model *model;
    nn_program *program;
    status_table *table;
    uint64_t token;
    optimizer_options optimizer;
} bench;

typedef struct bench_rank {
    device *device;
    device_stream *stream;
    param_set *params;
    optimizer *optimizer;
    ledger ledger;
    sync_engine *engine;
} bench_rank;

static status open_rank(const bench *b, int rank, bench_rank *r)
{
    int world = (int)b->options.ranks;
    sync_requirements needs;
    device_config device = {.name = "cpu", .rank = rank, .world = world, .local_rank = rank, .threads = 1};
    TRY(sync_ps.requirements(&b->ps, "sync", world, &needs));
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMPUTE, &r->stream));
    param_set_config arenas = {
        .param_kind = needs.param_kind, .grad_kind = needs.grad_kind, .gradients = true};
    TRY(param_set_open(r->device, b->model, b->program, &arenas, &r->params));
    TRY(param_set_initialize(r->params, r->stream, 1));
    TRY(optimizer_open(r->device, &b->optimizer, r->params->type, r->params->arena_elements,
                       b->model->parameter_elements, &r->ledger, &r->optimizer));
    ledger_acquire(&r->ledger, needs.param_class, r->params->logical_bytes + r->params->buffer_bytes,
                   (r->params->arena_elements + r->params->buffer_elements) * dtype_size(r->params->type));
    sync_context context = {.rank = rank,
                            .world = world,
                            .job_token = b->token,
                            .device = r->device,
                            .compute = r->stream,
                            .params = r->params,
                            .program = b->program,
                            .optimizer = r->optimizer,
                            .ledger = &r->ledger,
                            .slot = status_table_slot(b->table, rank),
                            .options = &b->ps,
                            .policy = "sync",
                            .stall_timeout_ns = 30 * NS_PER_S,
                            .inline_progress = b->options.inline_progress};
    return sync_ps.open(&context, &r->engine);
}

static status needs(const bench *b, bench_rank *r)
{
    const nn_program *p = b->program;
    for (int op = 0; op < p->forward_end; op++)
        for (int i = 0; i < p->ops[op].need_count; i++)
            TRY(sync_ps.need(r->engine, p->needs[p->ops[op].need_first + i]));
    return STATUS_OK;
}

/* The nanoseconds of one exchange. */
static status exchange(const bench *b, processes *all, bench_rank *r, int64_t index, double *out)
{
    sync_step step = {
        .index = index, .samples = 32, .targets = 32, .learning_rate = 1e-3, .synchronize = true};
    sync_engine *e = r->engine;
    TRY(sync_ps.begin_forward(e, &step));
    TRY(needs(b, r));
    TRY(sync_ps.end_forward(e, &step));
    memset(r->params->grads.data, index % 2 ? 0x3c : 0x3d, (size_t)r->params->arena_elements * 4);
    TRY(processes_barrier(all));
    int64_t begin = clock_now_ns();
    for (int i = 0; i < b->program->ready_count; i++) TRY(sync_ps.ready(e, b->program->ready_order[i]));
    TRY(sync_ps.reduce(e, &step));
    step.index++;
    TRY(sync_ps.begin_forward(e, &step));
    TRY(needs(b, r));
    *out = (double)(clock_now_ns() - begin);
    return processes_barrier(all);
}

static status run_rank(processes *all, int rank, void *context)
{
    bench *b = context;
    bench_rank r = {0};
    double *figures = all->members[rank].figures;
    sync_blob mine, offers[PROCESSES_MAX];
    sync_counters before, after;
    double unused;
    TRY(open_rank(b, rank, &r));
    TRY(sync_ps.handshake(r.engine, &mine));
    TRY(processes_exchange(all, rank, mine, offers));
    TRY(sync_ps.connect(r.engine, offers));
    for (int64_t s = 0; s < WARM; s++) TRY(exchange(b, all, &r, s, &unused));
    sync_ps.counters(r.engine, &before);
    for (int64_t s = 0; s < b->options.steps; s++) TRY(exchange(b, all, &r, WARM + s, &figures[s]));
    TRY(sync_ps.flush(r.engine));
    sync_ps.counters(r.engine, &after);
    double *links = figures + b->options.steps;
    links[0] = (double)(after.bytes_sent - before.bytes_sent) / (double)b->options.steps;
    links[1] = (double)(after.messages_sent - before.messages_sent) / (double)b->options.steps;
    links[2] = (double)(after.update_aside_ns - before.update_aside_ns) / (double)b->options.steps;
    TRY(processes_barrier(all));
    sync_ps.close(r.engine);
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int report(const bench *b, const processes *all)
{
    int steps = (int)b->options.steps;
    double slowest[PROCESS_FIGURES] = {0}, sent = 0, messages = 0, update = 0;
    for (int m = 0; m < all->count; m++) {
        const process_outcome *o = &all->members[m];
        if (o->code != STATUS_OK) {
            fprintf(stderr, "rank %d (wait status %d, code %d): %s\n", m, o->wait_status, (int)o->code,
                    o->message);
            return status_exit_code(o->code);
        }
        for (int s = 0; s < steps; s++)
            if (o->figures[s] > slowest[s]) slowest[s] = o->figures[s];
        if (o->figures[steps] > sent) sent = o->figures[steps];
        messages += o->figures[steps + 1];
        update += o->figures[steps + 2];
    }
    qsort(slowest, (size_t)steps, sizeof *slowest, ascending);
    printf("%s %d ranks  median %.2f ms  quartiles %.2f %.2f  minimum %.2f  largest rank sends %.2f MB, all "
           "%.1f messages, "
           "updates %.2f ms per step\n",
           b->options.model, all->count, slowest[steps / 2] / 1e6, slowest[steps / 4] / 1e6,
           slowest[steps * 3 / 4] / 1e6, slowest[0] / 1e6, sent / 1e6, messages, update / 1e6);
    return 0;
}

static status prepare(bench *b, int argc, char **argv)
{
    option_binding bindings[] = {{.table = &bench_option_table, .storage = &b->options},
                                 {.table = &ps_option_table, .storage = &b->ps}};
    const char **positional = calloc((size_t)argc + 1, sizeof *positional);
    int count = 0;
    if (!positional) return fail(STATUS_SYSTEM, "no memory for the command line");
    TRY(options_defaults(bindings, 2));
    status rc = options_parse(bindings, 2, argc - 1, argv + 1, positional, &count);
    free(positional);
    TRY(rc);
    model_options model = {.name = b->options.model, .classes = 10, .image = 32};
    TRY(model_build(&model, &b->model));
    nn_program_config program = {.batch = 32, .mode = NN_TRAIN, .type = DTYPE_F32, .world = b->options.ranks};
    TRY(nn_program_compile(b->model, &program, &b->program));
    b->token = random_token();
    b->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    b->optimizer.momentum = 0.9;
    return status_table_create(b->token, (int)b->options.ranks, &b->table);
}

int main(int argc, char **argv)
{
    bench b = {0};
    if (prepare(&b, argc, argv) != STATUS_OK) {
        fprintf(stderr, "%s\n", error_message());
        return status_exit_code(error_code());
    }
    processes *all = processes_run((int)b.options.ranks, run_rank, &b, 600);
    if (!all) return 71;
    int code = report(&b, all);
    processes_free(all);
    status_table_close(&b.table);
    nn_program_free(&b.program);
    nn_model_free(&b.model);
    return code;
}
