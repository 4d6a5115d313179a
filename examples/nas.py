"""Search over architectures for the language model that learns the most in a day on one card.

``python examples/nas.py --hours 24 --device a100`` searches layers, heads, width of a head and
batch size of ``transformer.py``. Each architecture is built and captured once, on the meta device:
captures are cached in a folder by the hash of the program, also for later runs. Its step is
predicted, nothing is trained: the loss after the number of tokens that fit into the time comes from
a published law,

    loss = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28,    N parameters, D tokens

(Hoffmann et al., Training Compute-Optimal Large Language Models, 2022, equation 10), which was
fitted to other data and larger models: replace it with your own measure of quality. A larger model
learns more from each token and sees fewer of them; models that do not fit into the card's memory
are infeasible. Optuna searches; with ``--storage sqlite:///nas.db`` a search can be resumed.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path

import optuna

import irgraph

PROGRAM = Path(__file__).with_name("transformer.py")
LAYERS, HEADS, HEAD = (2, 4, 6, 8, 12, 16), (2, 4, 8, 12, 16), (32, 64, 128)
"""Choices of layers, heads, and the width of a head."""

LENGTH = 256
"""Number of words of a text."""

HOUR = 3600e6
"""One hour in microseconds."""


class Search:
    """Pricing of architectures on a device for a time of training.

    Attributes:
        device: name or file of a device sheet.
        hours: hours of training.
        cache: folder of captures.
    """

    def __init__(self, device: str, hours: float, cache: str) -> None:
        self.device, self.hours, self.cache = device, hours, cache
        irgraph.warm_up([device], passes=False)

    def capture(self, layers: int, heads: int, head: int) -> irgraph.Graph:
        """Return the step of an architecture, from the cache if it was captured before."""
        options = f"layers={layers}, heads={heads}, width={heads * head}, length={LENGTH}"
        target = f"{PROGRAM}:train({options})"
        return irgraph.capture_file(target, batch=8, cache=self.cache).graph

    def __call__(self, trial: optuna.Trial) -> float:
        """Return the loss that a trial's model would reach."""
        graph = self.capture(
            trial.suggest_categorical("layers", LAYERS),
            trial.suggest_categorical("heads", HEADS),
            trial.suggest_categorical("head", HEAD),
        )
        batch = 2 ** trial.suggest_int("log2 of batch", 2, 8)
        resized = irgraph.with_dims(graph, {"B": batch})
        facts = irgraph.device(self.device)
        needed = irgraph.peak_memory(resized).needs(facts.architecture)
        trial.set_constraint("memory", needed / facts.memory_bytes - 1)
        variants = irgraph.predict_variants(graph, [self.device], [{"B": batch}])
        step = float(variants.step_time[0, 0])
        tokens = self.hours * HOUR / step * batch * LENGTH
        trial.set_user_attr("parameters", parameters(graph))
        trial.set_user_attr("tokens", tokens)
        trial.set_user_attr("step_ms", step / 1e3)
        return loss(parameters(graph), tokens)


def parameters(graph: irgraph.Graph) -> int:
    """Return the number of parameters of a step."""
    return sum(prod(map(int, d.tensor.shape)) for d in graph.tensors if d.role == "param")


def loss(parameters: float, tokens: float) -> float:
    """Return the loss of a model after some tokens in nats per token, by the published law."""
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def run_search(search: Search, trials: int, storage: str | None, seed: int) -> optuna.Study:
    """Return the study after ``trials`` trials, including trials of earlier runs."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=f"{search.device}, {search.hours:g} h",
        storage=storage,
        sampler=optuna.samplers.TPESampler(seed=seed),
        load_if_exists=True,
    )
    finished = len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
    study.optimize(search, n_trials=max(0, trials - finished))
    return study


def main() -> None:
    """Print the best architectures and the importances of the choices."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="a100")
    parser.add_argument("--hours", type=float, default=24.0, help="of training (24)")
    parser.add_argument("--trials", type=int, default=200, help="those of earlier runs counted")
    parser.add_argument("--cache", default="captures", help="folder of captures (captures)")
    parser.add_argument("--storage", help="Optuna's, to go on: sqlite:///nas.db")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    search = Search(arguments.device, arguments.hours, arguments.cache)
    study = run_search(search, arguments.trials, arguments.storage, arguments.seed)
    finished = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    fit = [t for t in finished if t.constraints["memory"] <= 0]
    print(
        f"{len(finished)} trials, {len(fit)} fit into {arguments.device} (predicted, unvalidated):"
    )
    trial_by_choices = {str(sorted(t.params.items())): t for t in reversed(fit)}
    for best in sorted(trial_by_choices.values(), key=lambda t: t.value)[:5]:
        attributes = best.user_attrs
        print(
            f"  loss {best.value:.4f}: {attributes['parameters'] / 1e6:.1f} million parameters, "
            f"{attributes['tokens'] / 1e9:.2f} billion tokens, "
            f"step {attributes['step_ms']:.1f} ms, {best.params}"
        )
    if len(fit) > 1:
        shares = optuna.importance.get_param_importances(study)
        print(
            "what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        )


if __name__ == "__main__":
    main()
