"""Nothing random of a sealed job is used twice: seeds, keys, nonces, masks, noise and the dealer's words.

`SealedChecks` uses it. Everything is seen where it is used, not where it is drawn: so a value that outlives a process,
or is written down, is found as well as one that is drawn again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from ce.privacy import ring_words
from ce.privacy.dealt_products import SiteProducts
from ce.privacy.derivation import derive
from ce.privacy.pair_keys import NONCE_SIZE
from ce.privacy.secure_argmax import Member
from ce.protocol.sealed import site_tables
from ce.protocol.sealed.channel import Channel, Entropy
from ce.protocol.sealed.dealer import LocalDealer
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.site_argmax import SharedBlock
from ce.protocol.sealed.site_tables import SiteTables
from ce.testing.violation import Violation


class SealedRandomness:
    """Raises Violation when something random is used a second time, by any site, in any attempt."""

    def __init__(self) -> None:
        self._used: set[tuple[object, ...]] = set()

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Observe it."""
        with contextlib.ExitStack() as patches:
            for owner, name, make in (
                (SealedSite, "__init__", self._site_made),
                (SiteProducts, "__init__", self._products_made),
                (SiteProducts, "masked_rows", self._rows_masked),
                (Member, "__init__", self._member_made),
                (SharedBlock, "begin", self._argmax_begun),
                (Channel, "set_block_key", self._block_key_set),
                (Channel, "_encrypt", self._encrypted),
                (SiteTables, "share", self._share_made),
                (LocalDealer, "products", self._products_dealt),
                (LocalDealer, "corrections", self._corrections_dealt),
            ):
                patches.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))
            yield

    def _once(self, what: str, *key: object) -> None:
        if (what, *key) in self._used:
            raise Violation(f"{what}: is used twice")
        self._used.add((what, *key))

    # Each takes a function, and gives one that looks on.

    def _site_made(self, init: Callable[..., None]) -> Callable[..., None]:
        def observed(
            site: SealedSite, attempt: Any, name: str, *rest: Any, entropy: Entropy = os.urandom, **also: Any
        ) -> None:
            def drawn(size: int) -> bytes:
                found = entropy(size)
                self._once("random bytes", found)
                return found

            init(site, attempt, name, *rest, entropy=drawn, **also)

        return observed

    def _products_made(self, init: Callable[..., None]) -> Callable[..., None]:
        def observed(products: SiteProducts, site: str, seed: bytes, *rest: Any) -> None:
            self._once("the seed of the products", seed)
            self._once("the seed of the dealer's check", rest[-1])
            init(products, site, seed, *rest)

        return observed

    def _rows_masked(self, masked_rows: Callable[..., bytes]) -> Callable[..., bytes]:
        def observed(products: SiteProducts, context: bytes) -> bytes:
            self._once("the mask of rows", products._seed, context)
            return masked_rows(products, context)

        return observed

    def _member_made(self, init: Callable[..., None]) -> Callable[..., None]:
        def observed(member: Member, index: int, members: int, seed: bytes, context: bytes, *rest: Any) -> None:
            self._once("the seed of the argmax", seed, context)
            init(member, index, members, seed, context, *rest)

        return observed

    def _argmax_begun(self, begin: Callable[..., None]) -> Callable[..., None]:
        def observed(block: SharedBlock, key: bytes, seed: bytes, context: bytes, *rest: Any) -> None:
            self._once("the key of the order of rows", block._site, key)
            begin(block, key, seed, context, *rest)

        return observed

    def _block_key_set(self, set_block_key: Callable[..., None]) -> Callable[..., None]:
        def observed(channel: Channel, block: int, fresh: bytes) -> None:
            self._once("the key of a block", channel.site, fresh)
            set_block_key(channel, block, fresh)

        return observed

    def _encrypted(self, encrypt: Callable[..., Any]) -> Callable[..., Any]:
        def observed(channel: Channel, key: bytes, content: bytes, context: bytes) -> Any:
            box = encrypt(channel, key, content, context)
            self._once("a key with its nonce", key, box[:NONCE_SIZE].tobytes())
            return box

        return observed

    def _share_made(self, share: Callable[..., bytes]) -> Callable[..., bytes]:
        """Noise and masks of the roster are drawn here, and nothing else."""

        def observed(tables: SiteTables) -> bytes:
            site = tables._context.site

            def noise(key: bytes) -> ring_words.Stream:
                self._once("the stream of the noise", key)
                return ring_words.Stream(key)

            def mask(seed: bytes, *purpose: bytes) -> ring_words.Stream:
                self._once("the mask of a share", site, derive(seed, *purpose))
                return ring_words.stream_of(seed, *purpose)

            with (
                mock.patch.object(site_tables, "Stream", noise),
                mock.patch.object(site_tables, "stream_of", mask),
            ):
                return share(tables)

        return observed

    def _products_dealt(self, products: Callable[..., Any]) -> Callable[..., Any]:
        def observed(dealer: LocalDealer, seeds: Mapping[str, bytes]) -> Any:
            for seed in seeds.values():
                self._once("a seed of the dealer", seed)
            return products(dealer, seeds)

        return observed

    def _corrections_dealt(self, corrections: Callable[..., Any]) -> Callable[..., Any]:
        def observed(dealer: LocalDealer, context: bytes, seeds: Sequence[bytes], *rest: Any) -> Any:
            for seed in seeds:
                self._once("a seed of the dealer", seed, context)
            return corrections(dealer, context, seeds, *rest)

        return observed
