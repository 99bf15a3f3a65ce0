#include "labs/runner/runner.h"

#include "labs/runner/confine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

int runner_rank, runner_size;
size_t runner_capacity;

void runner_write(runner_message m, const void *data)
{
    const char *parts[] = {(const char *)&m, data};
    int64_t sizes[] = {(int64_t)sizeof m, m.bytes};
    for (int p = 0; p < 2; p++)
        for (int64_t done = 0; done < sizes[p];) {
            ssize_t more = write(RUNNER_SOCKET, parts[p] + done, (size_t)(sizes[p] - done));
            if (more <= 0) _exit(0);
            done += more;
        }
}

void runner_read_data(void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t more = read(RUNNER_SOCKET, (char *)data + done, (size_t)(bytes - done));
        if (more <= 0) _exit(0);
        done += more;
    }
}

static runner_message runner_read(void)
{
    runner_message m;
    runner_read_data(&m, (int64_t)sizeof m);
    return m;
}

runner_message runner_ask(runner_message m, const void *data)
{
    runner_write(m, data);
    return runner_read();
}

void *runner_memory(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) abort();
    return memory;
}

/* Declarations from sanitizer/allocator_interface.h, a header that Debian's gcc lacks. Without the sanitizer
 * both functions are NULL. */
__attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes(void);
__attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *,
                                                                                        size_t),
                                                                    void (*free_hook)(const volatile void *));
static int64_t before, most;

static void on_malloc(const volatile void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    int64_t now = (int64_t)__sanitizer_get_current_allocated_bytes() - before;
    if (now > most) most = now;
}

static void on_free(const volatile void *memory)
{
    (void)memory;
}

void runner_watch_memory(void)
{
    static int installed;
    if (!__sanitizer_install_malloc_and_free_hooks) return;
    if (!installed) installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    before = (int64_t)__sanitizer_get_current_allocated_bytes();
    most = 0;
}

int64_t runner_most_memory(void)
{
    return most;
}

/* Limits memory to a gigabyte more than loader and sanitizer have mapped. The sanitizer reserves terabytes of
 * address space, so RLIMIT_AS cannot be used. */
static void limit_memory(void)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmData: %lld kB", &kib) == 1) break;
    if (file) fclose(file);
    struct rlimit limit = {(rlim_t)(kib + (1 << 20)) * 1024, (rlim_t)(kib + (1 << 20)) * 1024};
    if (kib > 0) setrlimit(RLIMIT_DATA, &limit);
}

int main(int argc, char *argv[])
{
    (void)argc;
    runner_rank = atoi(argv[1]);
    runner_size = atoi(argv[2]);
    runner_capacity = (size_t)atoll(argv[3]);
    setvbuf(stdout, NULL, _IOLBF, 4096); /* so that the last line that is printed is not lost */
    limit_memory();
    confine(CONFINE_SET_UP); /* afterwards no file can be opened */
    for (;;) {
        runner_message m = runner_read();
        void *data = runner_memory((size_t)m.bytes);
        runner_read_data(data, m.bytes);
        runner_case(m, data);
        free(data);
    }
}
