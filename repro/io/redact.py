"""Removal of private data: secrets of the environment, home folder, and names of user and host.

What is recorded passes `redacted` where it is committed, and W&B's copy before it is sent. Values
that look like ordinary words are not removed: secrets of fewer than `_SHORTEST` characters, and
names of a user or host that are words of this project.
"""

import netrc
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from repro.io.untrusted import SMALL, open_regular, read_text

# Names of environment variables that hold secrets.
_SECRET = re.compile(
    r"(^|_)(TOKENS?|KEYS?|PAT|PWD|AUTH|PEM)(_?ID|_?\d+|_PEM)?$|TOKEN|API_?KEY|ACCESS_?KEY"
    r"|PRIVATE_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL"
)
_NO_SECRET = ("PWD", "OLDPWD")  # folders of a shell
_IN_ADDRESS = re.compile(r"\w://[^/\s:@]*:([^/\s@]+)@")  # DATABASE_URL=postgres://me:password@host
_SHORTEST = 8  # characters of a secret
_ORDINARY = ("localhost", "root", "smoke", "laptop", "node", "paper", "timed", "transformer")
_MARK = "***"

Secrets = tuple[tuple[str, str], ...]  # (place, secret), the longest first


def redact(text: str) -> str:
    """The text with `~` for the home folder, and `***` for secrets and names of user and host."""
    return _redactor()(text)


def redacted(value: Any) -> Any:
    """A plain value with every text in it redacted, also names of fields."""
    return _walk(value, _redactor())


def home_to_tilde(name: str, value: Any) -> Any:
    """A plain value with `~` for the home folder at the start of its texts, for use elsewhere.

    Args:
        name: of the value, for messages.
        value: a plain value that will be recorded.

    Raises:
        ValueError: one line: a text holds a secret, or the home folder in another place, where `~`
            could not be undone.
    """
    if isinstance(value, Mapping):
        for key in value:
            if home_to_tilde(f"a name in {name}", key) != key:
                raise ValueError(
                    f"a name in {name} holds the path of your home folder, which would be recorded"
                )
        return {key: home_to_tilde(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [home_to_tilde(name, part) for part in value]
    text = str(value)
    # No secret is shorter, and to list all secrets takes longer than everything else here.
    for place, secret in _secrets() if len(text) >= _SHORTEST else ():
        if secret in text:
            raise ValueError(
                f"{name} holds {place}, which would be recorded: take it out, and have your code "
                "read it there itself"
            )
    if not isinstance(value, str):
        return value
    for home in _homes():
        value = re.sub(rf"^{re.escape(home)}(?=/|$)", "~", value)
        if re.search(_path(home), value):
            raise ValueError(
                f"{name} holds the path of your home folder, which would be recorded: write ~/... "
                "instead"
            )
    return value


def tilde_to_home(value: Any) -> Any:
    """The inverse: `~` and `~/...` become paths below this machine's home folder."""
    if isinstance(value, Mapping):
        return {name: tilde_to_home(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [tilde_to_home(part) for part in value]
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return os.path.expanduser(value)  # noqa: PTH111  (keeps a slash at the end)
    return value


def _walk(value: Any, redactor: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, Mapping):
        return {
            redactor(name) if isinstance(name, str) else name: _walk(part, redactor)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_walk(part, redactor) for part in value]
    return value


def _redactor() -> Callable[[str], str]:
    """For the environment as it is now; it costs much to make and little to use."""
    return _redactor_of(_secrets(), _homes(), socket.gethostname())


@lru_cache(maxsize=2)
def _redactor_of(secrets: Secrets, homes: tuple[str, ...], host: str) -> Callable[[str], str]:
    # As it is, on one line, and as Python prints it.
    forms = [(s, " ".join(s.split()), repr(s)[1:-1]) for _, s in secrets]
    every_form = list(dict.fromkeys(form for each in forms for form in each))
    rules: list[tuple[str, str]] = []
    for home in homes:
        rules.append((_path(home), "~"))
        user = re.escape(Path(home).name)
        if _is_private(user):  # the user's name as a folder of another path
            rules.append((rf"(?<![\w.-]){user}(?=/)|(?<=/){user}(?![\w.-])", _MARK))
    names = filter(_is_private, dict.fromkeys((host, host.partition(".")[0])))
    rules += [(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _MARK) for name in names]
    compiled = [(re.compile(pattern), mark) for pattern, mark in rules]

    @lru_cache(maxsize=10_000)
    def redactor(text: str) -> str:
        for form in every_form:
            text = _without_start(text.replace(form, _MARK), form)
        for pattern, mark in compiled:
            text = pattern.sub(mark, text)
        # Names of files may hold lone surrogates, which no reader accepts.
        return text.encode(errors="replace").decode()

    return redactor


def _secrets() -> Secrets:
    """Secrets of this process and user."""
    return _secrets_of(tuple(os.environ.items()), _stored())


@lru_cache(maxsize=2)
def _secrets_of(environment: tuple[tuple[str, str], ...], stored: Secrets) -> Secrets:
    secrets = [*stored]
    for name, value in environment:
        place = f"the environment variable {name}"
        if name not in _NO_SECRET and _SECRET.search(name.upper()):
            secrets.append((place, value))
        secrets += [(place, password) for password in _IN_ADDRESS.findall(value)]
    secrets = [(place, secret) for place, secret in secrets if len(secret) >= _SHORTEST]
    return tuple(sorted(secrets, key=lambda pair: -len(pair[1])))


@cache
def _stored() -> Secrets:
    """Secrets that `wandb login` and `hf auth login` have stored in the user's files."""
    secrets = []
    with suppress(OSError, netrc.NetrcParseError, ValueError, RuntimeError):
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        open_regular(path).close()  # refuses a pipe, for which netrc would wait
        hosts = netrc.netrc(path).hosts
        secrets += [
            (f"the password for {host} in your .netrc", hosts[host][2] or "") for host in hosts
        ]
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache_home}/huggingface"
    with suppress(ValueError, RuntimeError):
        path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
        secrets.append(("your Hugging Face token", read_text(path, SMALL).strip()))
    return tuple(secrets)


def _homes() -> tuple[str, ...]:
    """The home folder by its name and by its real path; none if it is the root of the disk."""
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home raises where there is none)
    paths = dict.fromkeys((home.rstrip("/"), os.path.realpath(home)))
    return tuple(path for path in paths if len(path) > 1)


def _path(home: str) -> str:
    """A pattern that finds a home folder in a text, but not inside of another path."""
    return rf"(?<![\w.~-]){re.escape(home)}(?![\w-])"


def _is_private(name: str) -> bool:
    """Whether a name of a user or host is to be removed: no ordinary word of this project."""
    return len(name) > 2 and name.lower() not in _ORDINARY


def _without_start(text: str, secret: str) -> str:
    """The text without the start of a secret at its end, where a long text may have been cut."""
    for length in range(len(secret) - 1, _SHORTEST // 2, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + _MARK
    return text
