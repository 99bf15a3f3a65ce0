/* The threads of a block as fibers of one host thread: each runs until it meets a barrier or ends. Where all
 * that live stand at the barrier, of the block or of a warp, they go on. */
#include <cuda_runtime.h>

#include <stdlib.h>
#include <sys/mman.h>

enum { MOST_THREADS = 1024, WARP_SIZE = 32, STACK_BYTES = 128 << 10 };

__thread emulated_size threadIdx, blockIdx, blockDim, gridDim;

namespace
{

enum place { RUNNING, AT_BLOCK, AT_WARP, ENDED };

struct fiber {
    void *stack_pointer;
    place at;
};

struct scheduler {
    char *stacks;
    fiber fibers[MOST_THREADS];
    void *stack_pointer; /* of the scheduler */
    int current, count, alive, at_block;
    int warp_alive[MOST_THREADS / WARP_SIZE], at_warp[MOST_THREADS / WARP_SIZE];
    uint64_t slots[MOST_THREADS];
    int any;
    void (*run)(void *);
    void *context;
};

__thread scheduler *own;

} // namespace

/* Saves what a call must leave as it was (System V AMD64), changes stacks, and returns on the other one. */
extern "C" void emulator_switch(void **save, void *load);
__asm__(".text\n.globl emulator_switch\n.type emulator_switch, @function\nemulator_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulator_switch, . - emulator_switch\n");

namespace
{

void release_block(scheduler *s)
{
    if (s->at_block == 0 || s->at_block < s->alive) return;
    for (int i = 0; i < s->count; i++)
        if (s->fibers[i].at == AT_BLOCK) s->fibers[i].at = RUNNING;
    s->at_block = 0;
}

void release_warp(scheduler *s, int warp)
{
    if (s->at_warp[warp] == 0 || s->at_warp[warp] < s->warp_alive[warp]) return;
    for (int i = warp * WARP_SIZE; i < s->count && i < (warp + 1) * WARP_SIZE; i++)
        if (s->fibers[i].at == AT_WARP) s->fibers[i].at = RUNNING;
    s->at_warp[warp] = 0;
}

void leave(scheduler *s)
{
    emulator_switch(&s->fibers[s->current].stack_pointer, s->stack_pointer);
}

void fiber_main()
{
    scheduler *s = own;
    s->run(s->context);
    int warp = s->current / WARP_SIZE;
    s->fibers[s->current].at = ENDED;
    s->alive--;
    s->warp_alive[warp]--;
    release_block(s);
    release_warp(s, warp);
    leave(s);
    abort();
}

/* A fiber begins as if emulator_switch had been called by fiber_main's caller. */
void begin_fiber(scheduler *s, int i)
{
    void **top = (void **)(s->stacks + (size_t)(i + 1) * STACK_BYTES) - 2;
    *top = (void *)fiber_main;
    s->fibers[i] = {top - 6, RUNNING};
}

void run_block(scheduler *s)
{
    s->alive = s->count;
    s->at_block = 0;
    for (int i = 0; i < s->count; i++) begin_fiber(s, i);
    for (int warp = 0; warp * WARP_SIZE < s->count; warp++) {
        int rest = s->count - warp * WARP_SIZE;
        s->warp_alive[warp] = rest < WARP_SIZE ? rest : WARP_SIZE;
        s->at_warp[warp] = 0;
    }
    while (s->alive > 0) {
        bool moved = false;
        for (int i = 0; i < s->count; i++) {
            if (s->fibers[i].at != RUNNING) continue;
            moved = true;
            s->current = i;
            unsigned rest = (unsigned)i / blockDim.x;
            threadIdx = {(unsigned)i % blockDim.x, rest % blockDim.y, rest / blockDim.y};
            emulator_switch(&s->stack_pointer, s->fibers[i].stack_pointer);
        }
        if (!moved) abort(); /* a barrier that not all reach */
    }
}

scheduler *open_scheduler()
{
    scheduler *s = (scheduler *)calloc(1, sizeof *s);
    void *stacks = mmap(NULL, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!s || stacks == MAP_FAILED) abort();
    s->stacks = (char *)stacks;
    return s;
}

} // namespace

extern "C" {

void emulator_open_memory(void);
void emulator_close_memory(void);

void __syncthreads()
{
    scheduler *s = own;
    s->fibers[s->current].at = AT_BLOCK;
    s->at_block++;
    release_block(s);
    leave(s);
}

static void sync_warp()
{
    scheduler *s = own;
    int warp = s->current / WARP_SIZE;
    s->fibers[s->current].at = AT_WARP;
    s->at_warp[warp]++;
    release_warp(s, warp);
    leave(s);
}

int __syncthreads_or(int value)
{
    own->any = 0;
    __syncthreads();
    if (value) own->any = 1;
    __syncthreads();
    int any = own->any;
    __syncthreads();
    return any;
}

uint64_t emulator_exchange(uint64_t value, int lane_mask)
{
    scheduler *s = own;
    int me = s->current;
    s->slots[me] = value;
    sync_warp();
    uint64_t other = s->slots[me ^ lane_mask];
    sync_warp();
    return other;
}

void emulator_run(emulated_size grid, emulated_size block, void (*run)(void *context), void *context)
{
    if (!own) own = open_scheduler();
    own->run = run;
    own->context = context;
    own->count = (int)(block.x * block.y * block.z);
    if (own->count > MOST_THREADS) abort();
    blockDim = block;
    gridDim = grid;
    emulator_open_memory();
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(own);
    emulator_close_memory();
}
}
