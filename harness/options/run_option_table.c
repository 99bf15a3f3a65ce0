/* The options of `harness run`. */
#include "common/net/status_table.h"
#include "common/nn/stages.h"
#include "common/pipeline/schedule.h"
#include "common/sim/profile.h"
#include "harness/launch/processors.h"
#include "harness/options/run_options.h"

#include <stddef.h>

const char *const run_mode_names[] = {ENGINE_LIST(ENGINE_MODE) "both", NULL};
static const char *const stages_places[] = {"ranks", "devices", NULL}; /* stages_place */
static const char *const reduction_names[] = {"mean", "sum", NULL};
static const char *const switch_names[] = {"off", "on", NULL};
static const char *const host_names[] = {"none", "python", NULL};
static const char *const gather_names[] = {"loss", "outputs", "caches", NULL};
static const char *const progress_names[] = {"auto", "thread", "inline", NULL};
#define LEVEL_NAME(name) #name,
static const char *const level_names[] = {LOG_LEVELS(LEVEL_NAME) NULL};
#undef LEVEL_NAME

enum { MOST_VIRTUAL_RANKS = 1000000 };

#define FIELD(name) offsetof(run_options, name)
static const option run_option_list[] = {
    {"mode", OPTION_CHOICE, FIELD(mode), .initial = "both", .choices = run_mode_names,
     .help = "engine that synchronizes the ranks; both: none, ps and ring, compared"},
    {"gpus", OPTION_INT, FIELD(gpus), .alias = "nproc-per-node", .argument = "N", .low = 1,
     .high = MOST_VIRTUAL_RANKS,
     .help = "ranks, one per GPU, or CPU processes without GPUs [number of GPUs, or of cores; 2 in virtual "
             "time]"},
    {"device", OPTION_TEXT, FIELD(device), .argument = "NAME", .initial = "auto",
     .help = "auto (cuda if there is a GPU, else cpu), cpu, cuda, reference, or sim[:PROFILE] for virtual "
             "time, see `harness profiles`"},
    {"tf32", OPTION_FLAG, FIELD(tf32), .help = "cuda, sim: matrix products and convolutions in TF32"},
    {"bf16", OPTION_FLAG, FIELD(bf16),
     .help = "as torch.autocast: matrix products in bfloat16; also activations on cuda and sim (cpu needs "
             "AVX512_BF16)"},
    {"fp16", OPTION_FLAG, FIELD(fp16), .level = OPTION_RARE,
     .help = "sim: as --bf16, in float16, which a V100 has and bfloat16 it has not"},
    {"benchmark", OPTION_FLAG, FIELD(benchmark), .old_name = "cudnn-benchmark", .level = OPTION_RARE,
     .help = "cuda: before the first step, time the deterministic algorithms of cuDNN and cuBLASLt and use "
             "the fastest; two runs may not be bit-identical"},
    {"cuda-graph", OPTION_FLAG, FIELD(cuda_graph), .level = OPTION_RARE,
     .help = "cuda: record the passes of a step once as CUDA graphs and launch the graphs"},
    {"prefetch", OPTION_CHOICE, FIELD(prefetch), .initial = "on", .choices = switch_names,
     .level = OPTION_RARE,
     .help = "cuda, sim: copy the next step's batch to separate GPU memory during a step; other devices copy "
             "no batches"},
    {"share-gpu", OPTION_FLAG, FIELD(share_gpu), .level = OPTION_RARE,
     .help = "cuda: ranks may share a GPU; results are correct, but bandwidths differ from separate GPUs"},
    {"isolated", OPTION_FLAG, FIELD(isolated), .level = OPTION_RARE,
     .help = "run the same ranks without exchange, too, in turns with the other jobs, which tells neighbors "
             "from contention; the default with --mode both on a CPU"},
    {"steps", OPTION_INT, FIELD(steps), .argument = "N", .high = 1e12,
     .help = "steps after the warm-up [30, if no epochs are given]"},
    {"epochs", OPTION_INT, FIELD(epochs), .argument = "N", .low = 1, .high = 1e9,
     .help = "passes over the training data, the warm-up included"},
    {"warmup", OPTION_INT, FIELD(warmup), .argument = "N", .initial = "5", .high = 1e9,
     .help = "first steps that train but are not measured"},
    {"accumulate", OPTION_INT, FIELD(accumulate), .argument = "K", .initial = "1", .low = 1, .high = 1e6,
     .help = "batches per step; gradients are averaged over the batches and exchanged after the last"},
    {"stages", OPTION_INT, FIELD(stages), .argument = "P", .initial = "1", .low = 1, .high = NN_MOST_STAGES,
     .level = OPTION_RARE,
     .help = "ring, not on cuda: cut the model into P stages on separate ranks; micro-batches (--accumulate) "
             "pass through the stages as a pipeline; N x P ranks have N replicas of each stage"},
    {"stages-on", OPTION_CHOICE, FIELD(stages_on), .initial = "ranks", .choices = stages_places,
     .level = OPTION_RARE,
     .help = "place of the stages of --stages; devices: each rank has all stages, on P devices that work one "
             "after another"},
    {"schedule", OPTION_CHOICE, FIELD(schedule), .initial = "1f1b", .choices = pipeline_schedule_names,
     .level = OPTION_RARE,
     .help = "order of the passes with --stages; gpipe: all forward, then all backward; 1f1b: forward and "
             "backward alternate; sequential: one micro-batch at a time, as always with --stages-on devices"},
    {"remote-stage", OPTION_TEXT, FIELD(remote_stage), .argument = "HOST:PORT|local", .level = OPTION_RARE,
     .help = "ring, on cpu and reference: the second half of the model runs in a separate process, started "
             "with --serve-stage HOST:PORT and the same options; local: this program starts the process"},
    {"serve-stage", OPTION_TEXT, FIELD(serve_stage), .argument = "HOST:PORT", .level = OPTION_RARE,
     .help =
         "run the second half of the model for a run with --remote-stage HOST:PORT, and end with that run"},
    {"seed", OPTION_INT, FIELD(seed), .argument = "N", .initial = "1", .high = 0x1p62,
     .help = "seed of parameters, data order, augmentation and held-out data"},
    {"policy", OPTION_TEXT, FIELD(policy), .argument = "P|ps=P,ring=P",
     .help = "how an engine behaves, see `harness policies`; with keys: ring=ddp:order=ready"},
    {"threads", OPTION_INT, FIELD(threads), .argument = "N", .low = 1, .high = 1024,
     .help = "compute threads per rank [processors / ranks, at least 1]"},
    {"bind", OPTION_CHOICE, FIELD(bind), .initial = "none", .choices = bind_names, .level = OPTION_RARE,
     .help = "bind ranks to processors; core: each rank to separate cores, as mpirun --bind-to core"},
    {"loss-reduction", OPTION_CHOICE, FIELD(loss_reduction), .initial = "mean", .choices = reduction_names,
     .level = OPTION_RARE, .help = "how the losses of the targets of a rank's batch are combined"},
    {"eval-every", OPTION_PERIOD, FIELD(eval_every), .argument = "STEPS|EPOCHSep", .initial = "0", .low = -1,
     .high = 1e12,
     .help = "evaluate on the test data every so many steps, or epochs as in 1ep, and at the end (0 for only "
             "at the end, or 20 times with a target; -1 for never)"},
    {"target-loss", OPTION_DOUBLE, FIELD(target_loss), .argument = "X", .initial = "0", .high = 1e12,
     .help = "report the training time until the loss on the test data is at most X (0 for no target)"},
    {"target-accuracy", OPTION_DOUBLE, FIELD(target_accuracy), .argument = "X", .initial = "0", .high = 1,
     .help = "report the training time until the accuracy on the test data is at least X, such as 0.9 (0 for "
             "no target)"},
    {"repeat", OPTION_INT, FIELD(repeat), .argument = "N", .initial = "1", .low = 1, .high = 1000,
     .help = "run N times and report medians with 95 % intervals; 8 and more allow a verdict; no effect in "
             "virtual time"},
    {"config", OPTION_TEXT, FIELD(config), .argument = "FILE",
     .help = "read options from a file of long names and values, TOML (FILE.toml) or JSON, or from the JSON "
             "of a run; options of the command line override the file"},
    {"json", OPTION_TEXT, FIELD(json), .argument = "FILE",
     .help = "write the results there (- for stdout, without the report)"},
    {"report", OPTION_TEXT, FIELD(report), .argument = "FILE.html",
     .help = "write the report there as a page with figures"},
    {"trace", OPTION_TEXT, FIELD(trace), .argument = "FILE",
     .help = "write a time line of all ranks there, for ui.perfetto.dev"},
    {"trace-steps", OPTION_TEXT, FIELD(trace_steps), .argument = "FIRST:END", .level = OPTION_RARE,
     .help = "steps to trace, from FIRST to END - 1; the warm-up counts [the first 10 measured steps]"},
    {"verbose", OPTION_FLAG, FIELD(verbose), .letter = 'v', .help = "print the tables after the verdict"},
    {"print-steps", OPTION_FLAG, FIELD(print_steps), .level = OPTION_RARE,
     .help = "print a line per step: loss, time of the forward pass (fp_time), and of the backward pass with "
             "the exchange (bp_time), on rank 0"},
    {"print-shapes", OPTION_FLAG, FIELD(print_shapes), .level = OPTION_RARE,
     .help = "print the shapes of input and output on every rank, whenever they change"},
    {"quiet", OPTION_FLAG, FIELD(quiet), .help = "no progress and no notes on stderr"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), .initial = "info", .choices = level_names,
     .level = OPTION_RARE, .help = "least severe messages that are written to stderr"},
    {"plan", OPTION_FLAG, FIELD(plan),
     .help = "print the memory that every rank would hold, and run nothing"},
    {"rendezvous", OPTION_TEXT, FIELD(rendezvous), .argument = "URL",
     .help = "tcp://HOST:PORT, file://PATH or env://, if another program starts the ranks [env:// if "
             "torchrun, mpirun or srun has started several]"},
    {"nnodes", OPTION_INT, FIELD(nnodes), .argument = "N", .initial = "1", .low = 1, .high = JOB_MOST_RANKS,
     .level = OPTION_RARE,
     .help = "as torchrun: number of machines of the run; start this program on each, with HARNESS_KEY or "
             "HARNESS_KEY_FILE; --gpus then counts the ranks of one machine"},
    {"node-rank", OPTION_INT, FIELD(node_rank), .argument = "I", .high = JOB_MOST_RANKS - 1,
     .level = OPTION_RARE, .help = "number of this machine in a run with --nnodes, from 0"},
    {"master-addr", OPTION_TEXT, FIELD(master_addr), .argument = "HOST", .level = OPTION_RARE,
     .help = "address of machine 0 in a run with --nnodes"},
    {"master-port", OPTION_INT, FIELD(master_port), .argument = "PORT", .initial = "29500", .low = 1,
     .high = 65534, .level = OPTION_RARE, .help = "port at which rank 0 listens in a run with --nnodes"},
    {"connect-timeout", OPTION_DURATION, FIELD(connect_timeout_ns), .argument = "TIME", .initial = "60s",
     .low = 1e6, .level = OPTION_RARE, .help = "how long ranks wait for each other at the start"},
    {"progress", OPTION_CHOICE, FIELD(inline_progress), .initial = "auto", .choices = progress_names,
     .level = OPTION_RARE,
     .help = "communicate on a separate thread, or inline while the compute thread waits"},
    {"jitter", OPTION_INT, FIELD(jitter), .argument = "SEED", .initial = "0", .high = 0x1p62,
     .level = OPTION_RARE,
     .help = "virtual devices: draw speeds of GPUs and times of kernels from SEED (0 for identical ones)"},
    {"nodes", OPTION_INT, FIELD(nodes), .argument = "N", .initial = "0", .high = 65536, .level = OPTION_RARE,
     .help = "virtual devices: number of machines [as many as the ranks fill]"},
    {"adapters", OPTION_INT, FIELD(adapters), .argument = "N", .initial = "0", .high = SIM_NICS_MOST,
     .level = OPTION_RARE,
     .help = "virtual devices: network adapters per machine, at most those of a ready profile [all]"},
    {"oversubscription", OPTION_DOUBLE, FIELD(oversubscription), .argument = "X", .initial = "1", .low = 1,
     .high = 1000, .level = OPTION_RARE,
     .help = "virtual devices: rate of all adapters over the rate of the network's core (1 never blocks)"},
    {"gpu", OPTION_TEXT, FIELD(gpu), .argument = "NAME", .level = OPTION_RARE,
     .help =
         "virtual devices: machines with GPUs such as h100, instead of a profile; see `harness profiles`"},
    {"per-host", OPTION_INT, FIELD(per_host), .argument = "N", .low = 1, .high = SIM_GPUS_MOST,
     .level = OPTION_RARE, .help = "with --gpu: GPUs per host [as the profile of the GPU]"},
    {"nvlink", OPTION_FLAG, FIELD(nvlink), .level = OPTION_RARE,
     .help = "with --gpu: NVLink connects the GPUs of a host, otherwise only PCIe"},
    {"topology", OPTION_TEXT, FIELD(topology), .argument = "FILE", .level = OPTION_RARE,
     .help = "with --gpu: wire a host as in FILE, the output of nvidia-smi topo -m"},
    {"efficiency", OPTION_DOUBLE, FIELD(efficiency), .argument = "FACTOR", .initial = "1", .low = 0.001,
     .high = 1000, .level = OPTION_RARE,
     .help = "virtual devices: multiply the profile's efficiencies of computation by FACTOR"},
    {"draw", OPTION_INT, FIELD(draw), .argument = "N", .initial = "0", .high = SIM_DRAWS,
     .level = OPTION_RARE,
     .help =
         "virtual devices: draw constants from their ranges, draw 1 to 16 (0 for the values of the profile)"},
    {"loader-workers", OPTION_TEXT, FIELD(loader_workers), .argument = "N|host:N", .initial = "0",
     .level = OPTION_RARE,
     .help = "virtual devices: workers that decode images, per process of the job, or host:N for N workers "
             "that the processes of a host share; a job has one process under dp, else one per rank (0 for "
             "batches that take no time)"},
    {"loader-rate", OPTION_DOUBLE, FIELD(loader_rate), .argument = "RATE", .initial = "0", .high = 1e9,
     .level = OPTION_RARE,
     .help = "with --loader-workers: samples per second that a worker makes, all its work included [from "
             "the profile, for images]"},
    {"workload", OPTION_TEXT, FIELD(workload), .argument = "FILE|NUMBERS", .level = OPTION_RARE,
     .help = "virtual devices: replay a job of `harness import`, or "
             "params=350M,units=24,step=412ms,peak=31GiB; see docs/bring-your-own.md"},
    {"workload-out", OPTION_TEXT, FIELD(workload_out), .argument = "FILE", .level = OPTION_RARE,
     .help = "virtual devices: write the times and the memory of one step of one GPU there, for --workload"},
    {"dp-host", OPTION_CHOICE, FIELD(dp_host), .initial = "python", .choices = host_names,
     .level = OPTION_RARE,
     .help = "virtual devices, dp: python for replicas that are threads of one Python process, as in "
             "PyTorch; none for hosts that launch without an interpreter, as this program does"},
    {"dp-gather", OPTION_CHOICE, FIELD(dp_gather), .initial = "loss", .choices = gather_names,
     .level = OPTION_RARE,
     .help = "virtual devices, dp with --dp-loss replica: tensors that rank 0 gathers from each replica; "
             "loss; outputs: also the outputs; caches: also the keys and values of attention, which language "
             "models of Hugging Face return"},
};
const option_table run_option_table = {"Run", run_option_list,
                                       sizeof run_option_list / sizeof run_option_list[0]};
