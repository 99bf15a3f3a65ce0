/* Lab 6: runs the student's server with bounded staleness, and saves and loads its checkpoints. Arrays have
 * exact sizes, so the sanitizer finds accesses beyond their ends. */
#include "labs/runner/runner.h"

#include "labs/runner/call.h"
#include "labs/runner/server.h"

#include <string.h>

/* Saves a checkpoint. The capacity also suffices for a wasteful format. */
static void save(void *context)
{
    const lab_state *state = context;
    size_t capacity = 4096 + 16 * state->n + 16 * (size_t)state->ranks;
    unsigned char *bytes = runner_memory(capacity);
    size_t size = student_save(state, bytes, capacity);
    int64_t sent = size <= capacity ? (int64_t)size : 0;
    runner_write((runner_message){REDUCER_SAVED, 0, (int64_t)size, sent}, bytes);
    free(bytes);
}

static int serve(const stragglers_case *c)
{
    size_t n = (size_t)c->n;
    lab_state state = {.ranks = (int)c->ranks,
                       .staleness = c->staleness,
                       .n = n,
                       .lr = (float)c->lr,
                       .momentum = (float)c->momentum,
                       .param = runner_memory(n * sizeof(float)),
                       .velocity = runner_memory(n * sizeof(float)),
                       .clock = runner_memory((size_t)c->ranks * sizeof(int64_t))};
    lab_server server = {.save = save, .state = &state};
    int code = LAB_OK;
    if (c->saved > 0) {
        unsigned char *bytes = memcpy(runner_memory((size_t)c->saved), c + 1, (size_t)c->saved);
        code = student_load(&state, bytes, (size_t)c->saved);
        free(bytes);
    } else {
        memcpy(state.param, c + 1, n * sizeof(float));
    }
    if (code == LAB_OK) code = student_serve_stale(&server, &state);
    runner_write((runner_message){RUNNER_RESULT, code, 0, 0}, NULL);
    server_close(&server);
    free(state.param);
    free(state.velocity);
    free(state.clock);
    return CALL_HAS_ANSWERED;
}

int call_function(int which, const double *in, int n, double *out)
{
    if (which == STRAGGLERS_SERVE) return serve((const void *)in);
    int ranks = n - 2;
    int64_t *clock = runner_memory((size_t)ranks * sizeof *clock);
    for (int r = 0; r < ranks; r++) clock[r] = (int64_t)in[2 + r];
    out[0] = student_may_begin(clock, ranks, (int)in[0], (int64_t)in[1]);
    free(clock);
    return 1;
}
