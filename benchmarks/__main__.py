"""`python -m benchmarks [MODEL ...]`: measure nbgen beside the peers that are installed, write RESULTS.md.

MODEL is `bundled` (the default), `m30` or `q06` (random weights, made on the spot), a folder or a hub id. `--profile`
tells where nbgen's time goes instead; `--render` writes the tables again from results.json. `--results` names the file
of another machine, whose tables are beside it.
"""

import argparse
import json
import math
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks import limits, machine, report, shapes, step_profile
from benchmarks.peers import OURS, PEERS, REFERENCE
from benchmarks.results import FILE, Record, Results
from benchmarks.servers import OURS_SERVED, SERVICES
from benchmarks.turns import MEMORY, Turns
from benchmarks.workloads import FIRST_TOKEN, WORKLOADS
from nbgen.engine_config import BUNDLED

LIMITS, SERVED = "limits", "served"
ROWS = (LIMITS, FIRST_TOKEN.name, *WORKLOADS, MEMORY, SERVED)
ENGINES = {**PEERS, **{name: service.peer for name, service in SERVICES.items()}}


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that every engine is closed
    results = Results(options.results)
    for model in () if options.render else options.models:
        started = time.monotonic()
        if options.profile:
            print(step_profile.table(shapes.checkpoint(model), options.threads))
        else:
            results.facts["machine"] = machine.describe()
            measure(model, options, results)
        print(f"{model}: {time.monotonic() - started:.0f} s", flush=True)
    if not options.profile:
        options.results.with_name(f"{options.results.stem.upper()}.md").write_text(report.render(results))


def measure(model: str, options: argparse.Namespace, results: Results) -> None:
    """All that was asked about one model."""
    run, folder = datetime.now().astimezone().isoformat(timespec="seconds"), shapes.checkpoint(model)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])

    def take(record: Record) -> None:
        record |= {"model": model, "turn": f"{run} {record['turn']}", "run": run, "command": command}
        results.add({**record, "load": round(psutil.getloadavg()[0], 2)})
        print(_line(record), flush=True)

    turns = Turns(folder, options.threads, [name for name in options.engines if name in PEERS], take)
    if FIRST_TOKEN.name in options.rows:
        turns.starts(options.repetitions)
    context = json.loads((folder / "config.json").read_text()).get("max_position_embeddings", math.inf)
    asked = [WORKLOADS[name] for name in options.rows if name in WORKLOADS and WORKLOADS[name].fits(context)]
    if asked or MEMORY in options.rows:
        beside_ours = LIMITS in options.rows and OURS in options.engines  # or they would replace those of our own turns
        known = beside_ours and _knows_cost(model, folder, results)
        turns.workloads(asked, options.repetitions, memory=MEMORY in options.rows, limits=known)
    if SERVED in options.rows:
        turns.streams([name for name in options.engines if name in SERVICES], options.repetitions)


def _knows_cost(model: str, folder: Path, results: Results) -> bool:
    """Whether it is known what a step takes, which is then kept."""
    cost = limits.cost(folder)
    if cost is None:
        print(f"{model:8} limits     unknown for this kind of model")
        return False
    results.keep("costs", {**results.facts.get("costs", {}), model: cost._asdict()})
    return True


def _line(record: Record) -> str:
    if "bytes" in record:
        figures = f"{record['bytes'] / 1e6:8.0f} MB"
    else:
        figures = f"{record['seconds']:8.3f} s {record['cpu_seconds']:8.3f} CPU s  others {record['foreign']:.0%}"
    return f"{record['model']:8} {record['workload']:10} {record['engine']:22} {figures}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("models", nargs="*", default=[BUNDLED], metavar="MODEL")
    parser.add_argument("--rows", type=_names(ROWS), default=list(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument(
        "--engines",
        type=_names(tuple(ENGINES)),
        default=[OURS, REFERENCE, OURS_SERVED],
        help=f"some of {','.join(ENGINES)}, or 'all' that are installed",
    )
    parser.add_argument("--repetitions", type=int, default=3, help="of each row, after one that does not count")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--results", type=Path, default=FILE, help="of a machine; the tables are beside it")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--render", action="store_true", help="write the tables from the records, measure nothing")
    return parser.parse_args()


def _names(known: tuple[str, ...]):
    def names(text: str) -> list[str]:
        chosen = known if text == "all" else text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        return [name for name in chosen if name not in ENGINES or ENGINES[name].python]

    return names


if __name__ == "__main__":
    main()
