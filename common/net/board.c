#include "common/net/board_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert(sizeof(board_cell) == 64, "a cell is one cache line");
_Static_assert(sizeof(board_header) % 64 == 0, "the cells behind the header start on a cache line");

const char *board_operation_name(board_operation operation)
{
#define OPERATION_NAME(name, text, waits) [BOARD_##name] = text,
    static const char *const names[BOARD_OPERATION_COUNT] = {BOARD_OPERATION_LIST(OPERATION_NAME)};
#undef OPERATION_NAME
    return (unsigned)operation < BOARD_OPERATION_COUNT ? names[operation] : "unknown";
}

bool board_operation_waits(board_operation operation)
{
#define OPERATION_WAITS(name, text, waits) [BOARD_##name] = (waits),
    static const bool waiting[BOARD_OPERATION_COUNT] = {BOARD_OPERATION_LIST(OPERATION_WAITS)};
#undef OPERATION_WAITS
    return (unsigned)operation < BOARD_OPERATION_COUNT && waiting[operation];
}

void board_cell_begin(board_cell *cell, int rank)
{
    atomic_store_explicit(&cell->rank, rank, memory_order_relaxed);
    atomic_store_explicit(&cell->pid, getpid(), memory_order_relaxed);
    atomic_store_explicit(&cell->step, -1, memory_order_relaxed);
    atomic_store_explicit(&cell->state, BOARD_RUNNING, memory_order_relaxed);
    atomic_store_explicit(&cell->operation, BOARD_START, memory_order_relaxed);
    board_cell_agent(cell, BOARD_START, BOARD_NO_BUCKET, clock_now_ns());
}

void board_cell_finish(board_cell *cell)
{
    board_cell_enter(cell, BOARD_DONE, clock_now_ns());
    atomic_store_explicit(&cell->state, BOARD_FINISHED, memory_order_release);
}

void board_cell_read(const board_cell *cell, board_status *out)
{
    *out = (board_status){
        .pid = atomic_load_explicit(&cell->pid, memory_order_relaxed),
        .rank = atomic_load_explicit(&cell->rank, memory_order_relaxed),
        .state = (board_state)atomic_load_explicit(&cell->state, memory_order_acquire),
        .operation = (board_operation)atomic_load_explicit(&cell->operation, memory_order_relaxed),
        .agent = (board_operation)atomic_load_explicit(&cell->agent, memory_order_relaxed),
        .bucket = atomic_load_explicit(&cell->bucket, memory_order_relaxed),
        .blocks_done = atomic_load_explicit(&cell->blocks_done, memory_order_acquire),
        .step = atomic_load_explicit(&cell->step, memory_order_relaxed),
        .time_ns = atomic_load_explicit(&cell->time_ns, memory_order_relaxed),
        .progress = atomic_load_explicit(&cell->progress, memory_order_relaxed),
    };
}

char *board_status_format(const board_status *s, char *buffer, size_t size)
{
    char step[48] = "before step 0", agent[80] = "";
    if (s->step >= 0) snprintf(step, sizeof step, "at step %" PRId64, s->step);
    if (s->agent != BOARD_START && s->bucket >= 0)
        snprintf(agent, sizeof agent, ", %s of bucket %d in flight", board_operation_name(s->agent),
                 s->bucket);
    else if (s->agent != BOARD_START)
        snprintf(agent, sizeof agent, ", %s in flight", board_operation_name(s->agent));
    snprintf(buffer, size, "%s in %s%s", step, board_operation_name(s->operation), agent);
    return buffer;
}

static size_t board_bytes(int world)
{
    return sizeof(board_header) + (size_t)world * sizeof(board_cell);
}

static board *board_over(const shm_segment *memory, int notify_fd)
{
    board *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->memory = *memory;
    b->header = memory->data;
    b->cells = (board_cell *)((char *)memory->data + sizeof(board_header));
    b->notify_fd = notify_fd;
    return b;
}

status board_create(uint64_t token, int world, board **out)
{
    shm_segment memory = {0};
    if (world < 1 || world > JOB_MOST_MEMBERS)
        return fail(STATUS_CONFIG, "board: expected 1 to %d members, got %d", JOB_MOST_MEMBERS, world);
    TRY(shm_create("board", (int64_t)board_bytes(world), &memory));
    int notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    board *b = notify_fd >= 0 ? board_over(&memory, notify_fd) : NULL;
    if (!b) {
        status result = fail_errno(STATUS_SYSTEM, "board: an event descriptor and memory");
        if (notify_fd >= 0) close(notify_fd);
        shm_close(&memory);
        return result;
    }
    b->header->magic = BOARD_MAGIC;
    b->header->world = world;
    b->header->token = token;
    atomic_store(&b->header->stop_step, INT64_MAX);
    atomic_store(&b->header->granted, UINT32_MAX);
    for (int r = 0; r < world; r++) {
        atomic_store(&b->cells[r].rank, r);
        atomic_store(&b->cells[r].step, -1);
        atomic_store(&b->cells[r].bucket, BOARD_NO_BUCKET);
        atomic_store(&b->cells[r].time_ns, clock_now_ns());
    }
    *out = b;
    return STATUS_OK;
}

static status check_header(const board_header *header, uint64_t token, int world)
{
    if (header->magic != BOARD_MAGIC)
        return fail(STATUS_PROTOCOL, "board: found layout %08" PRIx32 ", expected %08" PRIx32, header->magic,
                    BOARD_MAGIC);
    if (header->token != token)
        return fail(STATUS_PROTOCOL, "board: found job token %016" PRIx64 ", expected %016" PRIx64,
                    header->token, token);
    if (header->world != world)
        return fail(STATUS_CONFIG, "board: found a world size of %d, expected %d", (int)header->world, world);
    return STATUS_OK;
}

status board_attach(int memory_fd, int notify_fd, uint64_t token, int world, board **out)
{
    shm_segment memory = {0};
    board *b = NULL;
    status result;
    TRY_GOTO(result, shm_map(memory_fd, (int64_t)board_bytes(world), "the launcher", &memory), failed);
    TRY_GOTO(result, check_header(memory.data, token, world), failed);
    b = board_over(&memory, notify_fd);
    if (!b) {
        result = fail(STATUS_SYSTEM, "board: no memory");
        goto failed;
    }
    *out = b;
    return STATUS_OK;
failed:
    shm_close(&memory);
    close(notify_fd);
    return result;
}

void board_close(board **b)
{
    if (!*b) return;
    shm_close(&(*b)->memory);
    close((*b)->notify_fd);
    free(*b);
    *b = NULL;
}

int board_world(const board *b)
{
    return b->header->world;
}

int board_memory_fd(const board *b)
{
    return b->memory.fd;
}

int board_notify_fd(const board *b)
{
    return b->notify_fd;
}

board_cell *board_cell_of(board *b, int rank)
{
    return &b->cells[rank];
}

void board_read(const board *b, int rank, board_status *out)
{
    board_cell_read(&b->cells[rank], out);
}
