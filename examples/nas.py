"""Which language model learns the most in a day on one card: a search over architectures.

``python examples/nas.py --hours 24 --device a100`` searches layers, heads, width of a head and
batch size of ``transformer.py``. Each architecture is built and captured on the meta device, once:
captures are kept in a folder by the hash of the program, also for the next run. Its step is
predicted, nothing is trained: how well the model would do after the tokens that fit into the time
is taken from a published law,

    loss = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28,    N parameters, D tokens

(Hoffmann et al., Training Compute-Optimal Large Language Models, 2022, equation 10), which was
fitted to other data and larger models: put your own measure of quality in its place. A larger model
learns more from each token and sees fewer of them; what does not fit into the card's memory is
no answer. Optuna searches; with ``--storage sqlite:///nas.db`` a search that was ended goes on.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path

import optuna

import irgraph

PROGRAM = Path(__file__).with_name("transformer.py")
LAYERS, HEADS, HEAD = (2, 4, 6, 8, 12, 16), (2, 4, 8, 12, 16), (32, 64, 128)
"""What may be chosen: layers, heads, and the width of a head."""

LENGTH = 256
"""Words of a text."""

HOUR = 3600e6
"""Microseconds."""


class Search:
    """Prices architectures on a device for a time of training.

    Attributes:
        device: name or file of a device sheet.
        hours: of training.
        cache: folder of captures.
    """

    def __init__(self, device: str, hours: float, cache: str) -> None:
        self.device, self.hours, self.cache = device, hours, cache
        irgraph.warm_up([device], passes=False)

    def captured(self, layers: int, heads: int, head: int) -> irgraph.Graph:
        """Return the step of an architecture, read from the cache where it was captured before."""
        options = f"layers={layers}, heads={heads}, width={heads * head}, length={LENGTH}"
        target = f"{PROGRAM}:train({options})"
        return irgraph.capture_file(target, batch=8, cache=self.cache).graph

    def __call__(self, trial: optuna.Trial) -> float:
        """Return the loss that a trial's model would reach."""
        graph = self.captured(
            trial.suggest_categorical("layers", LAYERS),
            trial.suggest_categorical("heads", HEADS),
            trial.suggest_categorical("head", HEAD),
        )
        batch = 2 ** trial.suggest_int("log2 of batch", 2, 8)
        sized = irgraph.with_dims(graph, {"B": batch})
        facts = irgraph.device(self.device)
        needed = irgraph.peak_memory(sized).needs(facts.architecture)
        trial.set_constraint("memory", needed / facts.memory_bytes - 1)
        found = irgraph.predict_variants(graph, [self.device], [{"B": batch}])
        step = float(found.step_time[0, 0])
        tokens = self.hours * HOUR / step * batch * LENGTH
        trial.set_user_attr("parameters", parameters(graph))
        trial.set_user_attr("tokens", tokens)
        trial.set_user_attr("step_ms", step / 1e3)
        return loss(parameters(graph), tokens)


def parameters(graph: irgraph.Graph) -> int:
    """Return how many parameters a step has."""
    return sum(prod(map(int, d.tensor.shape)) for d in graph.tensors if d.role == "param")


def loss(parameters: float, tokens: float) -> float:
    """Return what a model reaches after some tokens, in nats a token, by the published law."""
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def searched(search: Search, trials: int, storage: str | None, seed: int) -> optuna.Study:
    """Return the study after so many trials, those of earlier runs counted."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=f"{search.device}, {search.hours:g} h",
        storage=storage,
        sampler=optuna.samplers.TPESampler(seed=seed),
        load_if_exists=True,
    )
    known = len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
    study.optimize(search, n_trials=max(0, trials - known))
    return study


def main() -> None:
    """Print the best architectures and what mattered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="a100")
    parser.add_argument("--hours", type=float, default=24.0, help="of training (24)")
    parser.add_argument("--trials", type=int, default=200, help="those of earlier runs counted")
    parser.add_argument("--cache", default="captures", help="folder of captures (captures)")
    parser.add_argument("--storage", help="Optuna's, to go on: sqlite:///nas.db")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    search = Search(given.device, given.hours, given.cache)
    study = searched(search, given.trials, given.storage, given.seed)
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    fit = [t for t in done if t.constraints["memory"] <= 0]
    print(f"{len(done)} trials, {len(fit)} fit into {given.device} (predicted, unvalidated):")
    shown = {str(sorted(t.params.items())): t for t in reversed(fit)}
    for best in sorted(shown.values(), key=lambda t: t.value)[:5]:
        made = best.user_attrs
        print(
            f"  loss {best.value:.4f}: {made['parameters'] / 1e6:.1f} million parameters, "
            f"{made['tokens'] / 1e9:.2f} billion tokens, step {made['step_ms']:.1f} ms, "
            f"{best.params}"
        )
    if len(fit) > 1:
        shares = optuna.importance.get_param_importances(study)
        print(
            "what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        )


if __name__ == "__main__":
    main()
