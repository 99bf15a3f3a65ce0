"""Training learns: accuracy on held-out data. With --long the larger network, too."""
from images import fashion_mnist, few_clothes
from program import harness
from tap import cases, expect, expect_equal, long_test, main, more_test, test


def accuracies(result):
    expect_equal(result.code, 0, "exit code", result)
    return {name: job["accuracy"] for name, job in result.jobs().items() if name != "isolated"}


@cases([(f"seed {seed}", seed) for seed in (1, 2, 3)])
def a_perceptron_classifies_94_of_100_wines(seed):
    found = accuracies(harness("--mode", "both", "--gpus", "2", "--model", "wine_mlp", "--data", "wine", "--batch", "16",
                               "--epochs", "100", "--optimizer", "adam", "--lr", "0.001", "--seed", seed, "--json", "-"))
    expect_equal(set(found), {"none", "all-cores", "ps", "ring"}, "jobs")
    for engine, accuracy in found.items():
        expect(accuracy >= 0.94, f"{engine}: {accuracy}")


@test
def test_samples_that_a_rank_repeats_do_not_count_in_a_loss_of_values():
    """Of 1000 samples 3 ranks get 334 each, and with batches of 111 the last batch of ranks 1 and 2 only repeats a sample."""
    words = ["--model", "toy", "--device", "reference", "--lr", "0", "--steps", "1", "--warmup", "0", "--json", "-", "--batch"]
    alone = harness("--mode", "none", *words, "10").jobs()["none"]["evaluations"][0]["loss"]
    for batch in ("5", "111"):
        found = harness("--mode", "ring", "--gpus", "3", *words, batch).jobs()["ring"]["evaluations"][0]["loss"]
        expect(abs(found - alone) < 1e-12, f"batches of {batch}: {found}, and of one rank {alone}")


@more_test
def lenet_learns_6000_images_of_fashion_mnist():
    found = accuracies(harness("--mode", "both", "--model", "lenet", "--data", few_clothes(6000, 1000), "--gpus", "2", "--batch", "32",
                               "--steps", "90", "--optimizer", "adam", "--lr", "0.002", "--json", "-", limit=180))
    for engine, accuracy in found.items():
        expect(accuracy >= 0.55, f"{engine}: {accuracy}")


@long_test
def lenet_classifies_86_of_100_images_after_3_epochs():
    found = accuracies(harness("--model", "lenet", "--data", fashion_mnist(), "--gpus", "2", "--batch", "32", "--epochs", "3",
                               "--optimizer", "adam", "--lr", "0.001", "--json", "-", limit=1800))
    for engine, accuracy in found.items():
        expect(accuracy >= 0.86, f"{engine}: {accuracy}")


main()
