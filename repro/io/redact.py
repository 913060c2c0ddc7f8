"""Removal of private data: secrets of the environment, home folder, and names of user and host.

Free text goes through `redact` before it enters a record or W&B. Values that look like ordinary
words are not removed: secrets of fewer than `_SHORTEST` characters, and names of a user or host
that are words of this project.
"""

import netrc
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
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


def redact(text: str) -> str:
    """The text with `~` for the home folder, and `***` for secrets and names of user and host."""
    for _, secret in _secrets():
        # As it is, on one line, and as Python prints it.
        for form in dict.fromkeys((secret, " ".join(secret.split()), repr(secret)[1:-1])):
            text = _without_start(text.replace(form, _MARK), form)
    for home in _homes():
        text = re.sub(_path(home), "~", text)
        user = re.escape(Path(home).name)
        if _is_private(user):  # the user's name as a folder of another path
            text = re.sub(rf"(?<![\w.-]){user}(?=/)|(?<=/){user}(?![\w.-])", _MARK, text)
    host = socket.gethostname()
    for name in dict.fromkeys((host, host.partition(".")[0])):
        if _is_private(name):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _MARK, text)
    # Names of files may hold lone surrogates, which no reader accepts.
    return text.encode(errors="replace").decode()


def redacted(value: Any) -> Any:
    """A plain value with every text in it redacted, also names of fields."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            redact(name) if isinstance(name, str) else name: redacted(part)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(part) for part in value]
    return value


def portable(name: str, value: Any) -> Any:
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
            if portable(f"a name in {name}", key) != key:
                raise ValueError(
                    f"a name in {name} holds the path of your home folder, which would be recorded"
                )
        return {key: portable(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [portable(name, part) for part in value]
    text = str(value)
    # No secret is shorter. To list all secrets takes longer than everything else here.
    secrets = _secrets() if len(text) >= _SHORTEST else ()
    for where, secret in secrets:
        if secret in text:
            raise ValueError(
                f"{name} holds {where}, which would be recorded: take it out, and have your code "
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


def expanded(value: Any) -> Any:
    """The inverse of `portable`: `~` and `~/...` become paths below this machine's home folder."""
    if isinstance(value, Mapping):
        return {name: expanded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [expanded(part) for part in value]
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return os.path.expanduser(value)  # noqa: PTH111  (keeps a slash at the end)
    return value


def _secrets() -> Iterator[tuple[str, str]]:
    """Secrets of this process and user, the longest first: (place, secret)."""
    secrets = [*_stored()]
    for name, value in os.environ.items():
        place = f"the environment variable {name}"
        if _is_secret(name):
            secrets.append((place, value))
        secrets += [(place, password) for password in _IN_ADDRESS.findall(value)]
    secrets = [(place, secret) for place, secret in secrets if len(secret) >= _SHORTEST]
    yield from sorted(secrets, key=lambda pair: -len(pair[1]))


def _is_secret(variable: str) -> bool:
    return variable not in _NO_SECRET and _SECRET.search(variable.upper()) is not None


@cache
def _stored() -> list[tuple[str, str]]:
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
    return secrets


def _homes() -> list[str]:
    """The home folder by its name and by its real path; none if it is the root of the disk."""
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home raises where there is none)
    paths = dict.fromkeys((home.rstrip("/"), os.path.realpath(home)))
    return [path for path in paths if len(path) > 1]


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
