/* Opens the module that links MPI, and starts MPI in this process. */
#include "common/collectives/mpi/mpi_module.h"

#include "common/base/program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

status mpi_module_check(const mpi_module *module, int code, const char *what)
{
    char text[160];
    if (!code) return STATUS_OK;
    module->error_text(code, text, sizeof text);
    return fail(STATUS_UNAVAILABLE, "collectives mpi: %s: %s", what, text);
}

/* Searches next to the program, then relative to an installed program, then in the build folder. */
static void *open_module(void)
{
    char program[PATH_MAX], path[PATH_MAX + 64];
    program_folder(program);
    static const char *const places[] = {"%s/libpsring_mpi.so", "%s/../lib/psring/libpsring_mpi.so"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, i == 0 ? places[0] : places[1], program);
        void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (library) return library;
    }
    return dlopen(PSRING_MODULE_DIR "/libpsring_mpi.so", RTLD_NOW | RTLD_GLOBAL);
}

static status load(const mpi_module **out)
{
    void *library = open_module();
    if (!library)
        return fail(STATUS_UNAVAILABLE,
                    "collectives mpi: the module libpsring_mpi.so cannot be opened: %s; "
                    "without Open MPI take --collective shm or auto",
                    dlerror());
    const mpi_module *module = *out = dlsym(library, MPI_MODULE_SYMBOL);
    if (!module || module->version != MPI_MODULE_VERSION)
        return fail(STATUS_UNAVAILABLE, "collectives mpi: libpsring_mpi.so is of another version");
    return STATUS_OK;
}

static status check_launched(const collective_config *config)
{
    if (config->world == 1 || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK")) return STATUS_OK;
    return fail(
        STATUS_UNAVAILABLE,
        "collectives mpi: this process was not started by mpirun: mpirun -x HARNESS_KEY -x MASTER_ADDR "
        "-x MASTER_PORT -np %d harness --mode ring --collective mpi",
        config->world);
}

/* Sets Open MPI's algorithm for non-blocking all-reduces. Open MPI reads its parameters in MPI_Init, once per
 * process. */
static status choose_algorithm(const collective_config *c)
{
    static collective_algorithm chosen = COLLECTIVE_ALGORITHM_AUTO;
    if (chosen != COLLECTIVE_ALGORITHM_AUTO && chosen != c->algorithm)
        return fail(STATUS_CONFIG,
                    "--algorithm: expected %s again, the one with which MPI was started, got %s",
                    collective_algorithm_names[chosen], collective_algorithm_names[c->algorithm]);
    chosen = c->algorithm;
    if (chosen == COLLECTIVE_ALGORITHM_RING &&
        setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "ring", 1) != 0)
        return fail_errno(STATUS_SYSTEM, "collectives mpi: the choice of the algorithm");
    return STATUS_OK;
}

status mpi_module_open(const collective_config *c, const mpi_module **out)
{
    int rank = -1, size = 0;
    if (net_link_is_emulated(&c->link))
        return fail(STATUS_CONFIG,
                    "--link: expected --collective shm, got mpi: what MPI sends cannot be paced");
    TRY(check_launched(c));
    TRY(load(out));
    TRY(choose_algorithm(c));
    TRY(mpi_module_check(*out, (*out)->open(reduce_pair, &rank, &size), "MPI_Init"));
    if (rank == c->rank && size == c->world) return STATUS_OK;
    return fail(STATUS_CONFIG, "collectives mpi: found rank %d of %d in MPI, expected %d of %d", rank, size,
                c->rank, c->world);
}
