"""Times ResNet-34 of the notebook 04_scaling on 1, 2, 4 and 8 ranks of this machine.

    python tutorials/benchmarks/resnet_ranks.py

The network and the measurement are those of the notebook: its cells tagged `measurement` are
executed. The results go to the file that the notebook shows. They hold on a quiet machine only.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import sys

import tagged_cells

NOTEBOOK = pathlib.Path(__file__).parents[1] / "notebooks" / "04_scaling.py"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=NOTEBOOK.with_suffix(".json"))
    return parser.parse_args()


def measure(names):
    """The slowest rank's seconds for a step, by the number of ranks and the batch of a rank."""
    network = next(each for each in names["NETWORKS"] if each.build is names["resnet34"])
    results = []
    for size in names["RANKS"]:
        with names["ddl"].Ranks(np=size, env=names["ONE_THREAD"]) as ranks:
            ranks.run(names["use_one_cpu"])
            medians = [each for each, _ in ranks.run(names["measure"], args=(network,))]
        for batch in medians[0]:
            seconds = max(each[batch] for each in medians)
            results.append({"ranks": size, "batch": batch, "seconds": float(f"{seconds:.4g}")})
    return results


def main():
    options = parse()
    # Functions of `__main__` travel to the ranks by value.
    names = tagged_cells.execute(NOTEBOOK, "measurement", __name__="__main__")
    report = {
        "command": shlex.join(["python", "tutorials/benchmarks/resnet_ranks.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "cores": names["CORES"],
        "results": measure(names),
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
