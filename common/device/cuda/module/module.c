/* Where program and module meet: the functions of the program that the module's code calls by their usual names, and
 * the symbol that the program looks for. The pointers are set once, when the program attaches the module. */
#include "common/device/cuda/module/cuda_impl.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const cuda_host *program;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* ranks that are threads attach at the same time */

/* Streams that share one of the GPU's queues wait for each other. With several ranks of one process on a GPU that could
 * be a deadlock, so the module requests as many queues as CUDA has, before any call of CUDA. */
static void attach(const cuda_host *host)
{
    pthread_mutex_lock(&lock);
    if (!program) {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
        program = host;
    }
    pthread_mutex_unlock(&lock);
}

enum { MOST_TEXT = sizeof((error_record *)0)->message };

status fail(status code, const char *format, ...)
{
    char text[MOST_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return program->fail(code, "%s", text);
}

void error_context(const char *format, ...)
{
    char text[MOST_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    program->error_context("%s", text);
}

void error_copy(error_record *out)
{
    program->error_copy(out);
}

status error_adopt(const error_record *record)
{
    return program->error_adopt(record);
}

void log_line(log_level level, const char *format, ...)
{
    char text[MOST_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    program->log_line(level, "%s", text);
}

extern const device_backend cuda_backend;
extern const cuda_module psring_cuda_module;

const cuda_module psring_cuda_module = {.version = CUDA_MODULE_VERSION,
                                        .layout = CUDA_MODULE_LAYOUT,
                                        .attach = attach,
                                        .count_gpus = cuda_count,
                                        .probe = cuda_probe_machine,
                                        .backend = &cuda_backend};
