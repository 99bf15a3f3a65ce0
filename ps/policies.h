/* The policies, one row each: POLICY(name, source, summary, fields of ps_policy). A file that includes this
 * one defines POLICY first. Command-line options can override every field. */

/* The partition size of BytePS, with a credit of four partitions. ByteScheduler also uses a credit of a few
 * partitions (Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration",
 * SOSP 2019). */
#define PARTITIONED                                                                                          \
    .partition_bytes = 4096000, .credit_bytes = 4 * 4096000, .priority = PS_PRIORITY_REVERSE, .servers = 1,  \
    .placement = PS_PLACEMENT_RANK, .server_optimizer = true

POLICY("dp",
       "torch.nn.DataParallel: torch/nn/parallel/{data_parallel,replicate,_functions}.py, "
       "torch/csrc/cuda/comm.cpp",
       "rank 0 scatters the batch, replicates the parameters, computes the loss and updates",
       .consistency = PS_DATA_PARALLEL, .servers = 1, .placement = PS_PLACEMENT_RANK,
       .server_optimizer = true, .replicate_bytes = 10485760, .reduce_bytes = 10485760)
POLICY("sync",
       "Li et al., \"Scaling Distributed Machine Learning with the Parameter Server\", OSDI 2014; MXNet's "
       "dist_sync; "
       "partitions as in BytePS, priorities as in P3 (Jayarajan et al., MLSys 2019)",
       "one update per step from the average over all ranks; the next forward pulls layer by layer",
       .consistency = PS_SYNC, PARTITIONED)
POLICY("ssp",
       "Ho et al., \"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server\", NIPS "
       "2013",
       "updates as in sync, but a rank may be up to --staleness steps ahead of the last update",
       .consistency = PS_SSP, .staleness = 3, PARTITIONED)
POLICY("async",
       "Dean et al., \"Large Scale Distributed Deep Networks\", NIPS 2012 (Downpour SGD); MXNet's dist_async",
       "each push updates the parameters at once; no rank waits for another", .consistency = PS_ASYNC,
       PARTITIONED)
