"""How does somebody outside know that a history was not cut, rolled back or written anew? Signed heads, kept elsewhere.

A head is signed with an Ed25519 key that the operator of the database does not hold. An anchor is a list of signed
heads on other media: a file, or a git repository that others pull from. ``verify`` against an anchor finds a head that
is no longer in the chain.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tacit.ledger.entries import ChainHead, canonical, digest
from tacit.ledger.errors import LedgerError, LedgerTampered, StorageError, TermsError

if TYPE_CHECKING:
    from tacit.ledger.core import Ledger

#: The name of the file of heads in a git repository.
HEADS = "heads.jsonl"
#: After how many loose objects git packs its repository: each commit holds all heads so far, and differs little.
LOOSE = 300


def _ed25519() -> Any:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise LedgerError(
            "signed heads need the package cryptography: pip install 'tacit[service]'. See: tacit explain missing-extra"
        ) from None
    return ed25519, serialization, InvalidSignature


class SigningKey:
    """An Ed25519 key that signs heads. Its file is readable for its owner only.

    Args:
        secret: The 32 bytes of the private key.

    Example:
        >>> key = SigningKey(bytes(range(32)))
        >>> head = ChainHead(3, "ab" * 32)
        >>> key.check("people", head, key.sign("people", head))
        True
        >>> key.check("others", head, key.sign("people", head))
        False
    """

    def __init__(self, secret: bytes) -> None:
        ed25519, _, _ = _ed25519()
        self._private = ed25519.Ed25519PrivateKey.from_private_bytes(secret)
        self._sealing = hashlib.blake2b(key=secret, digest_size=32, person=b"tacit seal")

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Write a new key to a new file, mode 0600.

        Args:
            path: The file, which must not exist.

        Returns:
            The key.
        """
        secret = os.urandom(32)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            raise StorageError(f"cannot write the key {os.fspath(path)}: {error.strerror}") from None
        with open(descriptor, "w") as file:
            file.write(base64.b64encode(secret).decode() + "\n")
        return cls(secret)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Read a key that only its owner can read.

        Args:
            path: The file that :meth:`make` wrote.

        Returns:
            The key.
        """
        try:
            mode = os.stat(path).st_mode
            text = Path(path).read_text(encoding="ascii")
            secret = base64.b64decode(text.strip(), validate=True)
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read the key {os.fspath(path)}: {error}") from None
        if stat.S_IMODE(mode) & 0o077:
            raise StorageError(
                f"the key {os.fspath(path)} can be read by others: make a new one, or chmod 600 it first"
            )
        if len(secret) != 32:
            raise StorageError(f"{os.fspath(path)} holds no key: tacit ledger key makes one")
        return cls(secret)

    @property
    def public(self) -> str:
        """The public key, to be given to everybody who verifies: 64 hexadecimal digits."""
        _, serialization, _ = _ed25519()
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        return str(self._private.public_key().public_bytes(*raw).hex())

    def sign(self, dataset: str, head: ChainHead) -> str:
        """The signature of a head.

        Args:
            dataset: The name of the data set.
            head: Its head.

        Returns:
            128 hexadecimal digits.
        """
        return str(self._private.sign(_message(dataset, head)).hex())

    def check(self, dataset: str, head: ChainHead, signature: str | None) -> bool:
        """Whether a signature is of this key and of this head.

        Args:
            dataset: The name of the data set.
            head: Its head.
            signature: The signature, if there is one.

        Returns:
            Whether it is.
        """
        return signed_by(self.public, dataset, head, signature)

    def seal(self, dataset: str, head: ChainHead) -> str:
        """A keyed hash of an entry's place and hash, which only whoever holds the key can write or check.

        Args:
            dataset: The name of the data set.
            head: The place and hash of the entry.

        Returns:
            64 hexadecimal digits.
        """
        state = self._sealing.copy()
        state.update(_message(dataset, head))
        return state.hexdigest()

    def __repr__(self) -> str:
        return f"<SigningKey {self.public[:16]}…>"


def signed_by(public: str, dataset: str, head: ChainHead, signature: str | None) -> bool:
    """Whether a head was signed with the key that belongs to a public key.

    >>> signed_by(SigningKey(bytes(32)).public, "people", ChainHead(0, "ab" * 32), None)
    False
    """
    ed25519, _, invalid = _ed25519()
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature or ""), _message(dataset, head))
    except (invalid, ValueError):
        return False
    return True


def _message(dataset: str, head: ChainHead) -> bytes:
    return canonical({"ledger": "tacit head 1", "dataset": dataset, "seq": head.seq, "hash": head.hash}).encode()


# -- anchors -----------------------------------------------------------------------------------------------------------


def heads_of(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """The heads of a ledger as lines of an anchor, signed where the ledger signs."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = []
    for name in [dataset] if dataset else ledger.datasets():
        head, signature = ledger._signature(name)
        found.append({"dataset": name, "seq": head.seq, "hash": head.hash, "time": now, "signature": signature})
    return found


def anchor(
    heads: list[dict[str, Any]], place: str | os.PathLike[str], known: list[dict[str, Any]] | None = None
) -> int:
    """Write heads to a file, or commit them to a git repository. Those that stand there already are left out.

    Args:
        heads: The heads, as :func:`heads_of` gives them.
        place: The file or the folder of the repository.
        known: Heads that were written there before; None reads what stands there.

    Returns:
        How many were new.
    """
    folder = Path(place)
    file = folder / HEADS if folder.is_dir() else folder
    if known is None:
        known = read_anchor(file) if file.exists() else []
    there = {(line["dataset"], line["hash"]) for line in known}
    new = [line for line in heads if (line["dataset"], line["hash"]) not in there]
    if not new:
        return 0
    # a link that others put into a repository is not followed: it may lead to a file that only the key's holder writes
    alone = getattr(os, "O_NOFOLLOW", 0) if folder.is_dir() else 0
    try:
        with open(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | alone, 0o644), "a+b") as out:
            text = "".join(canonical(line) + "\n" for line in new).encode()
            torn = _torn(out)
            out.truncate(out.seek(0, os.SEEK_END) - torn)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise StorageError(f"cannot write the anchor {file}: {error.strerror}") from None
    if folder.is_dir():
        _commit(folder, f"{len(new)} heads")
    return len(new)


def _commit(folder: Path, message: str) -> None:
    """Commit the file of heads to its repository.

    Others write to it, and nothing that they put there is run by whoever holds the key: no hook, no monitor, no program
    that signs, no filter (``git add`` and ``git commit`` would run those) and nothing that fetches.
    """
    never = ("core.fsmonitor=false", "commit.gpgSign=false", "protocol.allow=never", f"core.hooksPath={os.devnull}")
    named = ("user.name=tacit ledger", "user.email=ledger@localhost")
    words = ["git", "-C", str(folder), *(part for one in (*named, *never) for part in ("-c", one))]

    def git(*more: str, absent: bool = False) -> str:
        told = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
        if told.returncode and not absent:
            raise StorageError(f"git cannot keep the heads in {folder}: {told.stderr.strip() or told.stdout.strip()}")
        return told.stdout.strip()

    git("update-index", "--add", "--cacheinfo", f"100644,{git('hash-object', '-w', '--no-filters', HEADS)},{HEADS}")
    before = git("rev-parse", "--verify", "--quiet", "HEAD", absent=True)  # none in a new repository
    parents = ["-p", before] if before else []
    git("update-ref", "HEAD", git("commit-tree", git("write-tree"), *parents, "-m", message), before)
    if int(git("count-objects").split()[0]) > LOOSE:
        git("repack", "-q", "-a", "-d", "-k")  # not git gc, which can be told to run something


def read_anchor(place: str | os.PathLike[str], public: str | None = None) -> list[dict[str, Any]]:
    """The heads in an anchor; with a public key, each must be signed with it."""
    path = Path(place)
    file = path / HEADS if path.is_dir() else path
    try:
        with open(file, "rb") as there:
            torn = _torn(there)
            there.seek(0)
            text = there.read()
        lines = [json.loads(line) for line in text[: len(text) - torn].decode().splitlines() if line.strip()]
        known = [{**line, "dataset": str(line["dataset"]), "seq": int(line["seq"])} for line in lines]
        known = [line | {"head": ChainHead(line["seq"], str(line["hash"]))} for line in known]
    except OSError as error:
        raise StorageError(f"cannot read the anchor {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise TermsError(f"{file} is no anchor: each line is a head as tacit ledger anchor writes it") from None
    for line in known:
        if public is not None and not signed_by(public, line["dataset"], line["head"], line.get("signature")):
            raise LedgerTampered(f"{file} holds a head of {line['dataset']!r} that is not signed with the given key")
    return known


def _torn(file: BinaryIO) -> int:
    """The length of what follows the last end of a line: its writer was stopped, or the disk was full."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 16)))
    return len(file.read().rpartition(b"\n")[2])


def check_anchor(ledger: Ledger, place: str | os.PathLike[str]) -> None:
    """Check that the newest head of each data set in an anchor is still in the ledger, however long its history is.

    Guarantee: nothing that was anchored was cut off or rolled back. Whether older entries are whole, ``verify`` says.
    """
    lines = sorted(read_anchor(place), key=lambda line: line["seq"])  # whoever adds an old one hides no newer one
    newest = {line["dataset"]: line["head"] for line in lines}
    names, store = set(ledger.datasets()), ledger._store
    for name, head in newest.items():
        if name not in names:
            raise LedgerTampered(f"{place} holds a head of {name!r}, and the whole data set is gone")
        rows = store.after(name, head.seq - 1)  # type: ignore[attr-defined]
        if not rows or rows[0].head != head or digest(rows[0].body) != head.hash:
            raise LedgerTampered(
                f"{place} holds head {head.hash} of {name!r}, which is not in the chain: history was rewritten, cut or "
                "rolled back. tacit ledger verify --anchor shows more"
            )
        ledger._now(name)
