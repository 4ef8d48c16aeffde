"""Checks of the keys, shares and masked vectors of a secure sum, on the server and on the nodes.

Flower's SecAgg+ trusts what nodes send: one false key, share or vector would fail for everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
from flwr.common import Code, FitRes, Parameters, Status, bytes_to_ndarray
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from fedstride.engine.flower import records
from fedstride.wire.secure import MODULUS

UNREADABLE = "unreadable shares"  # record of a node that cannot read the shares of others
FALSE = "false share"  # reason why a node is left out
PER_NODE, SPARE = 2048, 4096  # bytes of a node's keys and shares for each other node, and of headers
SEED_SHARE = 52  # bytes of a share of a mask's seed: an index, 32 bytes and their padding

Shares = dict[int, dict[int, bytes]]  # owner of a secret: {node that holds a share: share}


# On a node.


def unreadable(message: Message, context: Context) -> RecordDict | None:
    """Return an answer that names the nodes whose shares cannot be read, None if there are none."""
    configs = cast(dict[str, Any], message.content.config_records[RECORD_KEY_CONFIGS])
    if configs.get(Key.STAGE) != Stage.COLLECT_MASKED_VECTORS:
        return None
    state = SecAggPlusState(**context.state.config_records[RECORD_KEY_STATE])
    given = zip(configs[Key.SOURCE_LIST], configs[Key.CIPHERTEXT_LIST], strict=True)
    wrong = [node for node, text in given if not _readable(state, node, text)]
    return RecordDict({UNREADABLE: ConfigRecord({"nodes": wrong})}) if wrong else None


def _readable(state: SecAggPlusState, node: int, ciphertext: bytes) -> bool:
    try:
        source, target, seed, key = share_keys_plaintext_separate(decrypt(state.ss2_dict[node], ciphertext))
    except Exception:  # another node chose these bytes
        return False
    return (source, target) == (node, state.nid) and len(seed) == SEED_SHARE and len(key) > 16 and len(key) % 16 == 4


# On the server.


def checked(stage: str, reply: RecordDict, asked: Message, nodes: Collection[int], size: int) -> RecordDict:
    """Return the part of a reply that SecAgg+ needs.

    Args:
        stage: stage of the protocol.
        reply: the content of the reply.
        asked: the message that it answers.
        nodes: the nodes of the sum.
        size: number of entries of a vector.

    Raises:
        Unusable: if it is not a reply of this stage.
    """
    others = set(nodes) - {asked.metadata.dst_node_id}
    if records.size(reply) > 8 * size + PER_NODE * (len(others) + 1) + SPARE:
        raise records.Unusable("corrupt")
    if stage == Stage.COLLECT_MASKED_VECTORS and UNREADABLE in reply.config_records:
        return RecordDict({UNREADABLE: reply[UNREADABLE]})
    try:
        given = cast(dict[str, Any], reply.config_records[RECORD_KEY_CONFIGS])
        found = _CHECKS[stage](given, cast(dict[str, Any], asked.content[RECORD_KEY_CONFIGS]), others, size)
    except Exception as error:  # the node chose these bytes
        raise records.Unusable("corrupt") from error
    if found is None:
        raise records.Unusable("corrupt")
    fitted = FitRes(Status(Code.OK, ""), Parameters([], ""), 1, {})
    more = fitres_to_recorddict(fitted, False) if stage == Stage.COLLECT_MASKED_VECTORS else RecordDict()
    return RecordDict({**more, RECORD_KEY_CONFIGS: ConfigRecord(found)})


def _keys(given: dict[str, Any], asked: dict[str, Any], others: set[int], size: int) -> dict[str, Any] | None:
    keys = {name: given[name] for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)}
    good = all(isinstance(bytes_to_public_key(key).curve, ec.SECP384R1) for key in keys.values())
    return keys if good and len(set(keys.values())) == len(keys) else None


def _sealed(given: dict[str, Any], asked: dict[str, Any], others: set[int], size: int) -> dict[str, Any] | None:
    to, texts = given[Key.DESTINATION_LIST], given[Key.CIPHERTEXT_LIST]
    good = sorted(to) == sorted(others) and len(texts) == len(to) and all(isinstance(text, bytes) for text in texts)
    return {Key.DESTINATION_LIST: to, Key.CIPHERTEXT_LIST: texts} if good else None


def _vectors(given: dict[str, Any], asked: dict[str, Any], others: set[int], size: int) -> dict[str, Any] | None:
    data = given[Key.MASKED_PARAMETERS]
    vectors = [bytes_to_ndarray(part) for part in data]
    good = [v.shape for v in vectors] == [(1,), (size,)] and all(v.dtype.kind in "iu" for v in vectors)
    good = good and all(bool(((v >= 0) & (v < MODULUS)).all()) for v in vectors)
    return {Key.MASKED_PARAMETERS: data} if good else None


def _opened(given: dict[str, Any], asked: dict[str, Any], others: set[int], size: int) -> dict[str, Any] | None:
    owners, shares = given[Key.NODE_ID_LIST], given[Key.SHARE_LIST]
    active = asked[Key.ACTIVE_NODE_ID_LIST]
    good = owners == [*active, *asked[Key.DEAD_NODE_ID_LIST]] and len(shares) == len(owners)
    good = good and all(len(share) == SEED_SHARE for share in shares[: len(active)])
    good = good and all(len(share) > 16 and len(share) % 16 == 4 for share in shares)
    return {Key.NODE_ID_LIST: owners, Key.SHARE_LIST: shares} if good else None


_CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any], set[int], int], dict[str, Any] | None]] = {
    Stage.SETUP: _keys,
    Stage.SHARE_KEYS: _sealed,
    Stage.COLLECT_MASKED_VECTORS: _vectors,
    Stage.UNMASK: _opened,
}


def same_keys(replies: Mapping[int, RecordDict]) -> set[int]:
    """Return the nodes that sent a key of an earlier one: nodes refuse to use equal keys."""
    seen, found = set[bytes](), set[int]()
    for node, reply in replies.items():
        keys = set(cast(dict[str, bytes], reply.config_records[RECORD_KEY_CONFIGS]).values())
        if keys & seen:
            found.add(node)
        seen |= keys
    return found


def accusations(replies: dict[int, RecordDict], nodes: Collection[int]) -> dict[int, set[int]]:
    """Remove the replies that accuse other nodes, and return them: node: the nodes whose shares it cannot read."""
    found = {node: reply.config_records[UNREADABLE] for node, reply in replies.items() if UNREADABLE in reply}
    for node in found:
        del replies[node]
    named = {node: cast(Any, record.get("nodes")) for node, record in found.items()}
    return {node: set(nodes) & set(of) - {node} if isinstance(of, list) else set() for node, of in named.items()}


def culprits(accusations: Mapping[int, Iterable[int]]) -> set[int]:
    """Return nodes that explain all accusations: of two nodes, the one in more of them, else the accused.

    With one faulty node, all accusations are by it or of it, so that two of them are enough to find it.
    """
    edges, found = {(one, other) for one, accused in accusations.items() for other in accused}, set[int]()
    while edges:
        counts = Counter(node for edge in edges for node in edge)
        accused = {other for _, other in edges}
        worst = max(sorted(counts), key=lambda node: (counts[node], node in accused))
        found.add(worst)
        edges = {edge for edge in edges if worst not in edge}
    return found


def false_dealers(replies: Mapping[int, RecordDict], threshold: int) -> set[int]:
    """Return the nodes whose secret cannot be restored, whichever holder of a share is left out."""
    shares: Shares = {}
    for holder, reply in replies.items():
        given = cast(dict[str, Any], reply.config_records[RECORD_KEY_CONFIGS])
        for owner, share in zip(given[Key.NODE_ID_LIST], given[Key.SHARE_LIST], strict=True):
            shares.setdefault(owner, {})[holder] = share
    if len(replies) <= threshold:  # a holder or the owner: nobody can tell
        return set()
    return {owner for owner, held in shares.items() if not any(_restored(held, out) for out in (None, *held))}


def _restored(held: Mapping[int, bytes], left_out: int | None) -> bool:
    try:
        combine_shares([share for holder, share in held.items() if holder != left_out])
    except Exception:  # a false share can raise any exception
        return False
    return True
