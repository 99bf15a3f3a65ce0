/* Reference solution of lab 6. Mutants of mutants.json change single lines of it. */
#include <lab.h>

#include <stdlib.h>
#include <string.h>

int student_may_begin(const int64_t *clock, int ranks, int rank, int64_t staleness)
{
    int64_t slowest = clock[0];
    for (int r = 1; r < ranks; r++)
        if (clock[r] < slowest) slowest = clock[r];
    return clock[rank] - slowest <= staleness;
}

static void apply(lab_state *state, const lab_push *push)
{
    for (size_t i = 0; i < state->n; i++) {
        state->velocity[i] = state->momentum * state->velocity[i] + push->grad[i];
        state->param[i] -= state->lr * state->velocity[i];
    }
    state->clock[push->rank]++;
}

int student_serve_stale(lab_server *server, lab_state *state)
{
    int rc = LAB_OK, *waits = malloc((size_t)state->ranks * sizeof *waits);
    if (!waits) return LAB_EMEMORY;
    for (int r = 0; r < state->ranks; r++) waits[r] = 1;
    while (rc == LAB_OK) {
        lab_push push;
        for (int r = 0; r < state->ranks && rc == LAB_OK; r++) {
            if (!waits[r] || !student_may_begin(state->clock, state->ranks, r, state->staleness)) continue;
            rc = lab_reply(server, r, state->param, state->n);
            waits[r] = 0;
        }
        if (rc == LAB_OK) rc = lab_receive_push(server, &push);
        if (rc != LAB_OK) break;
        apply(state, &push);
        waits[push.rank] = 1;
    }
    free(waits);
    return rc == LAB_END ? LAB_OK : rc;
}

size_t student_save(const lab_state *state, unsigned char *bytes, size_t capacity)
{
    size_t array = state->n * sizeof *state->param, clocks = (size_t)state->ranks * sizeof *state->clock;
    if (2 * array + clocks > capacity) return 0;
    memcpy(bytes, state->param, array);
    memcpy(bytes + array, state->velocity, array);
    memcpy(bytes + 2 * array, state->clock, clocks);
    return 2 * array + clocks;
}

int student_load(lab_state *state, const unsigned char *bytes, size_t size)
{
    size_t array = state->n * sizeof *state->param, clocks = (size_t)state->ranks * sizeof *state->clock;
    if (size != 2 * array + clocks) return LAB_ESIZE;
    memcpy(state->param, bytes, array);
    memcpy(state->velocity, bytes + array, array);
    memcpy(state->clock, bytes + 2 * array, clocks);
    return LAB_OK;
}
