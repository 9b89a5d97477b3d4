"""Answers requests that only tokenize or detokenize; and checks that a model has the ids of a request."""

from nbgen.engine.tokenizer import Tokenizer
from nbgen.errors import InvalidRequest
from nbgen.tokenizer_messages import DetokenizeRequest, TokenizerAnswer, TokenizeRequest


def translated(request: TokenizeRequest | DetokenizeRequest, tokenizer: Tokenizer, vocab: int) -> TokenizerAnswer:
    """The ids of plain texts, or the texts of ids. Raises InvalidRequest."""
    if isinstance(request, DetokenizeRequest):
        for ids in request.token_ids:
            check_ids(ids, "tokens", vocab)
        texts = tokenizer.texts(request.token_ids, skip_special_tokens=request.skip_special_tokens)
        return TokenizerAnswer(rid=request.rid, texts=texts)
    found = [tokenizer.encode(text, add_special_tokens=request.add_special_tokens) for text in request.texts]
    return TokenizerAnswer(rid=request.rid, token_ids=found)


def check_ids(ids: list[int] | dict[int, float], field: str, vocab: int, *, tokenized: bool = False) -> None:
    """Raise InvalidRequest for an id outside the vocabulary. `tokenized`: a tokenizer made the ids, not the client."""
    for token in ids:
        if not 0 <= token < vocab:
            what = "the text, as the model's tokenizer reads it," if tokenized else field
            raise InvalidRequest(
                f"{what} has the id {token}, which is out-of-vocabulary: ids go from 0 to {vocab - 1}", field=field
            )
