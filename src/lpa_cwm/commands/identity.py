"""Which shipped weights a result depends on, by content and use: results of others are never mixed with it."""

from pathlib import Path

from lpa_cwm.errors import InputError


def shipped(world: str = "", score: str = "", method: str = "") -> str:
    """A hash of the shipped files that a world model, a score field and a method use; others may change freely."""
    from lpa_cwm import hub
    from lpa_cwm.adjudicate.score import compact as score_field
    from lpa_cwm.files import packaged_weights
    from lpa_cwm.world.compact import world as compact

    uses = {
        compact.FILE: world.startswith("compact"),
        score_field.FILE: score == "compact",
        hub.LPA_FILE: method == "lpa",
    }
    use = compact.USE if uses[compact.FILE] else ""
    return digest_of([packaged_weights(name) for name, used in uses.items() if used], use)


def digest_of(files: list[Path], use: str = "") -> str:
    """A hash of the content of some files, and of what is made of them."""
    from hashlib import blake2b

    whole = blake2b(use.encode(), digest_size=16)
    for path in files:
        try:
            whole.update(blake2b(path.read_bytes()).digest())
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); expected a file of weights.") from error
    return whole.hexdigest()
