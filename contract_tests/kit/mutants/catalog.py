"""All mutants, by API."""

from contract_tests.kit.mutants import (
    administration,
    anthropic,
    http,
    media,
    native,
    ollama,
    openai,
    quotas,
    responses,
    routers,
    texts,
    vectors,
)
from contract_tests.kit.mutants.mutant import Mutant

ALL: list[Mutant] = [
    mutant
    for mutants in (
        http.MUTANTS,
        quotas.MUTANTS,
        native.MUTANTS,
        texts.MUTANTS,
        openai.MUTANTS,
        responses.MUTANTS,
        anthropic.MUTANTS,
        ollama.MUTANTS,
        media.MUTANTS,
        vectors.EMBEDDERS,
        vectors.RERANKERS,
        administration.MUTANTS,
        routers.MUTANTS,
    )
    for mutant in mutants.all
]
