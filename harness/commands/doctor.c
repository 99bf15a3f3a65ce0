/* harness doctor: shows the features of this machine, and likely problems. */
#include "harness/commands/commands.h"

#include "common/collectives/nccl/collective_nccl.h"
#include "common/device/cuda/cuda_module.h"
#include "common/device/host/host.h"
#include "harness/launch/processors.h"
#include "harness/result/run_result.h"

#include <inttypes.h>
#include <link.h>
#include <oneapi/dnnl/dnnl.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zmq.h>

static void __attribute__((format(printf, 3, 4)))
row(text_buffer *out, const char *what, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_append(out, "%-22s %s\n", what, text);
}

static void machine(text_buffer *out)
{
    char text[256], memory[64];
    struct utsname system;
    uname(&system);
    row(out, "system", "%s %s %s", system.sysname, system.release, system.machine);
    row(out, "processor", "%s", proc_value("/proc/cpuinfo", "model name", text, sizeof text));
    row(out, "processors", "%d usable of %ld online", host_processors(), sysconf(_SC_NPROCESSORS_ONLN));
    row(out, "memory", "%s, %s available", proc_value("/proc/meminfo", "MemTotal", memory, sizeof memory),
        proc_value("/proc/meminfo", "MemAvailable", text, sizeof text));
}

/* Shows the processors to which ranks would be bound, and the limits of a container. */
static void binding(text_buffer *out)
{
    processors p;
    char own[96], first[64], second[64];
    cpu_set_t set;
    if (processors_open("", NULL, &p) != STATUS_OK) {
        row(out, "cores", "unknown: %s", error_message());
        error_clear();
        return;
    }
    int threads = CPU_COUNT(&p.cores[0]);
    row(out, "cores", "%d of %d hardware thread%s, processors %s%s", p.core_count, threads,
        threads == 1 ? "" : "s", processors_format(&p.allowed, own, sizeof own),
        p.restricted ? ": bound by the program that started this one" : "");
    bind_choose(&p, (bind_group){2, 1}, 0, &set);
    processors_format(&set, first, sizeof first);
    bind_choose(&p, (bind_group){2, 1}, 1, &set);
    processors_format(&set, second, sizeof second);
    row(out, "run --bind core", "2 ranks of 1 thread: rank 0 on %s, rank 1 on %s", first, second);
    if (p.limit > 0)
        row(out, "container CPU limit", "%.2f processors%s", p.limit,
            p.limit < p.count ? ": ranks are throttled although more processors are shown" : "");
    else
        row(out, "container CPU limit", "none");
    processors_close(&p);
}

static void limits(text_buffer *out)
{
    struct rlimit files, locked;
    char size[32];
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_MEMLOCK, &locked);
    row(out, "descriptors", "%" PRIu64 "%s", (uint64_t)files.rlim_cur,
        files.rlim_cur < 256 ? ": a job of 8 ranks needs about 100 per process, raise it with ulimit -n"
                             : "");
    row(out, "lockable memory", "%s",
        locked.rlim_cur == RLIM_INFINITY ? "unlimited"
                                         : text_format_bytes(size, sizeof size, (double)locked.rlim_cur));
    int fd = memfd_create("harness-doctor", MFD_CLOEXEC);
    if (fd < 0) {
        row(out, "shared memory",
            "unavailable (memfd_create is refused); the ring and --payload shm cannot run");
    } else {
        bool large = ftruncate(fd, 1 << 30) == 0;
        row(out, "shared memory", "anonymous (memfd)%s", large ? "" : ", but less than 1 GiB");
        close(fd);
    }
}

static void libraries(text_buffer *out)
{
    const dnnl_version_t *v = dnnl_version();
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    row(out, "oneDNN", "%d.%d.%d, %s", v->major, v->minor, v->patch,
        v->cpu_runtime == DNNL_RUNTIME_OMP   ? "OpenMP"
        : v->cpu_runtime == DNNL_RUNTIME_SEQ ? "sequential"
                                             : "other threads");
    row(out, "libzmq", "%d.%d.%d", major, minor, patch);
    row(out, "protobuf-c", "%s", protobuf_c_version());
    row(out, "jansson", "%s", jansson_version_str());
    row(out, "zlib", "%s", zlibVersion());
    row(out, "xxHash", "%u.%u.%u", XXH_versionNumber() / 10000, XXH_versionNumber() / 100 % 100,
        XXH_versionNumber() % 100);
}

/* Lists OpenMP run-times. Two run-times in one process compete for the processors. */
static int count_openmp(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    text_buffer *found = context;
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libgomp", 7) == 0 || strncmp(name, "libomp", 6) == 0 ||
        strncmp(name, "libiomp", 7) == 0)
        text_append(found, "%s%s", found->length ? ", " : "", name);
    return 0;
}

static void openmp(text_buffer *out)
{
    text_buffer found = {0};
    dl_iterate_phdr(count_openmp, &found);
    bool two = found.data && strchr(found.data, ',');
    row(out, "OpenMP run-time", "%s%s", found.data ? found.data : "none",
        two ? ": two in one process fight over the processors" : "");
    text_free(&found);
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
                                            "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        if (getenv(variables[i])) row(out, variables[i], "%s (from the environment)", getenv(variables[i]));
}

static void devices(text_buffer *out)
{
    static const char *const names[] = {"cpu", "reference"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        device *d = NULL;
        char label[48];
        device_config config = {.name = names[i], .world = 1, .threads = host_processors()};
        snprintf(label, sizeof label, "device %s", names[i]);
        if (device_open(&config, &d) == STATUS_OK) {
            row(out, label, "%s, %s", device_get_info(d)->description,
                dtype_name(device_get_info(d)->compute_type));
            device_close(&d);
        } else {
            row(out, label, "not usable: %s", error_message());
            error_clear();
        }
    }
}

/* Shows the version of a CUDA component, or why the component is missing and what does not work without
 * it. */
static void cuda_piece(text_buffer *out, const char *name, const char *found, const char *why,
                       const char *cost)
{
    if (found[0] && !why[0])
        row(out, name, "%s", found);
    else
        row(out, name, "missing: %s: %s", why[0] ? why : "not found", cost);
}

/* Shows the GPUs. Does not open the device, which would take GPU memory. */
static void cuda(text_buffer *out)
{
    const cuda_module *module;
    cuda_probe p;
    if (cuda_module_open(&module) != STATUS_OK) {
        row(out, "device cuda", "not usable: %s", error_message());
        error_clear();
        return;
    }
    module->probe(&p);
    row(out, "device cuda", "%s, built with CUDA %s for %s%s", p.gpu_count > 0 ? "usable" : "not usable",
        p.toolkit, p.architectures,
        p.emulated                      ? "; EMULATED on the host, for tests"
        : strstr(p.architectures, "70") ? ""
                                        : "; P100 and V100 need a build with CUDA 12");
    for (int i = 0; i < p.gpu_count && i < CUDA_MOST_GPUS; i++) {
        char label[48], memory[32];
        snprintf(label, sizeof label, "GPU %d", i);
        row(out, label, "%s, compute capability %d.%d, %s%s", p.gpus[i].name, p.gpus[i].major,
            p.gpus[i].minor, text_format_bytes(memory, sizeof memory, (double)p.gpus[i].memory_bytes),
            p.gpus[i].runs ? "" : ": too old for this build");
    }
    cuda_piece(out, "CUDA driver", p.driver.version, p.driver.why, "no GPU can be used");
    cuda_piece(out, "cuBLASLt", p.cublaslt.version, p.cublaslt.why,
               "own matrix products, many times slower, no TF32");
    cuda_piece(out, "cuDNN", p.cudnn.version, p.cudnn.why, "own convolutions, many times slower, no TF32");
    char nccl[192];
    bool found = collective_nccl_found(nccl, sizeof nccl);
    cuda_piece(out, "NCCL", found ? nccl : "", found ? "" : nccl,
               "the ring goes through host memory, on one machine");
}

static status run_doctor(command_line *line)
{
    text_buffer *out = line->out;
    row(out, "harness", "%s", PROGRAM_VERSION);
    machine(out);
    binding(out);
    limits(out);
    devices(out);
    cuda(out);
    libraries(out);
    openmp(out);
    row(out, "Fashion-MNIST", "%s",
        access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK) == 0
            ? "installed"
            : "not installed: Debian's package is dataset-fashion-mnist");
    return STATUS_OK;
}

const command command_doctor = {.name = "doctor",
                                .usage = "",
                                .summary = "show devices, libraries and limits of this machine",
                                .run = run_doctor};
