/* Between the program and libpsring_cuda.so, which holds all that needs the CUDA Toolkit. The program opens
 * it at run time, so one installation starts with and without driver, cuDNN, cuBLASLt and NCCL: the module
 * itself needs none of them to be opened, and looks for each at run time.
 *
 * The module shares no global state with the program: the error record and the log are passed
 * to it as functions. */
#ifndef COMMON_DEVICE_CUDA_CUDA_MODULE_H
#define COMMON_DEVICE_CUDA_CUDA_MODULE_H

#include "common/base/log.h"
#include "common/device/device_impl.h"

#define CUDA_MODULE_LAYOUT (sizeof(device_backend) * 4096 + sizeof(op_desc) + sizeof(device_config) + sizeof(op_scalars))
enum { CUDA_MODULE_VERSION = 1, CUDA_MOST_GPUS = 16 };
#define CUDA_MODULE_SYMBOL "psring_cuda_module"

/* Functions of the program for the module. */
typedef struct cuda_host {
    status (*fail)(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));
    void (*error_context)(const char *format, ...) __attribute__((format(printf, 1, 2)));
    void (*error_copy)(error_record *out);
    status (*error_adopt)(const error_record *record);
    void (*log_line)(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
} cuda_host;

typedef struct cuda_gpu {
    char name[128];
    int major, minor; /* compute capability */
    int64_t memory_bytes;
    bool runs; /* the module holds code for it */
} cuda_gpu;

/* What was found; a text is "" where a piece is missing, with the reason in `why_*`. */
typedef struct cuda_probe {
    char toolkit[32];       /* "13.0": built with */
    char architectures[96]; /* "75 80 90 and PTX" */
    char driver[64], cudnn[64], cublaslt[64]; /* versions found */
    char why_driver[192], why_cudnn[192], why_cublaslt[192];
    bool emulated; /* no GPU at all: kernels run on the host, for tests */
    int gpu_count;
    cuda_gpu gpus[CUDA_MOST_GPUS]; /* the first of them */
} cuda_probe;

typedef struct cuda_module {
    int version;
    size_t layout; /* CUDA_MODULE_LAYOUT: program and module were built from the same headers */
    void (*attach)(const cuda_host *host); /* must be called first */
    int (*count_gpus)(void);         /* 0 where none can be used */
    void (*probe)(cuda_probe *out);  /* opens every library: slow */
    const device_backend *backend;
} cuda_module;

/* Opens the module from the program's folder, the installed folder relative to it, or the build folder;
 * PSRING_CUDA_MODULE in the environment names another file. The message of STATUS_UNAVAILABLE has the reason.
 * `library` (may be NULL) is dlopen's handle; it stays open for the life of the process. */
status cuda_module_open(const cuda_module **out, void **library);

/* The number of usable GPUs; never fails. */
int cuda_count_gpus(void);

#endif
