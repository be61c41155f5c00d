"""`python -m tools.models.train`: trains the shipped model, or continues its training.

The training can be stopped and continued at any time: each checkpoint is complete, and the next run
with the same directory continues from it. `--export` writes the model of a checkpoint.
"""

import argparse
from pathlib import Path

from tools.models.build import cache_directory
from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.recipes import TALKER_MERGES
from tools.models.tokenizer import save_merges, train_merges

TOKENIZER_LESSONS = 12_000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.models.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=cache_directory().parent / "training",
        help="directory of the checkpoint and the log (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="the random seed (%(default)s)")
    parser.add_argument(
        "--tokens", type=float, default=60e6, help="total number of tokens (%(default).0f)"
    )
    parser.add_argument(
        "--decay", type=float, default=0.3, help="share of the tokens with a falling rate"
    )
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads per process (%(default)s)")
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="processes (default: one per core), which share the work of each step; with a GPU "
        "they make its lessons (%(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="cuda is an NVIDIA GPU (%(default)s)",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="begin with the weights of an exported model, and with the hardest lessons; repeat "
        "this option each time the training is continued",
    )
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the model, don't train")
    parser.add_argument(
        "--kept",
        type=float,
        default=0.0,
        metavar="PART",
        help="for --export: mix the weights with those of --weights, which get this share, from 0 "
        "to 1; 0.3 to 0.5 is often better than either (default: %(default)s)",
    )
    parser.add_argument(
        "--type", choices=["Q8_0", "F16", "F32"], default="Q8_0", help="of --export"
    )
    parser.add_argument(
        "--train-tokenizer", action="store_true", help="renew the tokenizer's merges, don't train"
    )
    arguments = parser.parse_args()
    if arguments.train_tokenizer:
        _train_tokenizer(arguments.seed)
        return
    # Imported late: the import takes seconds, and needs PyTorch.
    import torch

    from tools.models.training import trainer

    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here, or was built without CUDA")

    settings = trainer.Settings(
        directory=arguments.directory,
        seed=arguments.seed,
        n_tokens=int(arguments.tokens),
        decay=arguments.decay,
        rate=arguments.rate,
        threads=arguments.threads,
        processes=arguments.processes,
        weights=arguments.weights,
        device=arguments.device,
    )
    if not 0 <= arguments.kept <= 1:
        parser.error("--kept has to be from 0 to 1")
    if arguments.kept and not arguments.weights:
        parser.error("--kept needs --weights")
    if arguments.export:
        trainer.export(settings, arguments.export, arguments.type, kept=arguments.kept)
        return
    trainer.train(settings)


def _train_tokenizer(seed: int) -> None:
    from tools.models.training.encoding import VOCABULARY_SIZE, plain_texts

    lessons = (
        each for i in range(TOKENIZER_LESSONS) for each in curriculum.lessons(Source(i, level=0.6))
    )
    merges = train_merges(plain_texts(lessons), VOCABULARY_SIZE, bare_words=True)
    save_merges(merges, TALKER_MERGES)


if __name__ == "__main__":
    main()
