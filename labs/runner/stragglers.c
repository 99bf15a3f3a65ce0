/* Lab 6: a server with bounded staleness, and its checkpoints. Arrays have exact sizes. */
#include "labs/runner/stragglers.h"

#include "labs/runner/server.h"

static void *exact(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) abort();
    return memory;
}

/* Saves a checkpoint. The capacity also suffices for a wasteful format. */
static void save(void *context)
{
    const lab_state *state = context;
    size_t capacity = 4096 + 16 * state->n + 16 * (size_t)state->ranks;
    unsigned char *bytes = exact(capacity);
    size_t size = student_save(state, bytes, capacity);
    int64_t sent = size <= capacity ? (int64_t)size : 0;
    runner_write((runner_message){REDUCER_SAVED, 0, (int64_t)size, sent}, bytes);
    free(bytes);
}

static void serve(const stragglers_case *c)
{
    size_t n = (size_t)c->n, ranks = (size_t)c->ranks;
    lab_state state = {.ranks = (int)c->ranks,
                       .staleness = c->staleness,
                       .n = n,
                       .lr = (float)c->lr,
                       .momentum = (float)c->momentum,
                       .param = exact(n * sizeof(float)),
                       .velocity = exact(n * sizeof(float)),
                       .clock = exact(ranks * sizeof(int64_t))};
    lab_server server = {.save = save, .state = &state};
    int code = LAB_OK;
    if (c->saved > 0) {
        unsigned char *bytes = exact((size_t)c->saved);
        runner_read_data(bytes, c->saved);
        code = student_load(&state, bytes, (size_t)c->saved);
        free(bytes);
    } else {
        runner_read_data(state.param, (int64_t)(n * sizeof(float)));
    }
    if (code == LAB_OK) code = student_serve_stale(&server, &state);
    runner_write((runner_message){RUNNER_RESULT, code, 0, 0}, NULL);
    server_close(&server);
    free(state.param);
    free(state.velocity);
    free(state.clock);
}

static void may_begin(const stragglers_case *c)
{
    int64_t *clock = exact((size_t)c->ranks * sizeof *clock);
    runner_read_data(clock, c->ranks * (int64_t)sizeof *clock);
    int code = student_may_begin(clock, (int)c->ranks, (int)c->rank, c->staleness);
    runner_write((runner_message){RUNNER_RESULT, code, 0, 0}, NULL);
    free(clock);
}

void runner_run(char **words, void (*set_up)(void))
{
    (void)words;
    set_up();
    for (;;) {
        runner_message m = runner_read();
        stragglers_case c;
        runner_read_data(&c, (int64_t)sizeof c);
        if (m.code == STRAGGLERS_SERVE)
            serve(&c);
        else
            may_begin(&c);
    }
}
