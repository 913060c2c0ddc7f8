"""What stays on this machine: secrets of the environment, the user's home and name, the host's name.

Free text goes through `redact` before it enters a record or W&B. What cannot be told from an
ordinary word stays: values of fewer than `_SHORTEST` characters, the names of a user or host that
is called like something of ours.
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

_SECRET = re.compile(
    r"(^|_)(TOKENS?|KEYS?|PAT|PWD|AUTH|PEM)(_?ID|_?\d+|_PEM)?$|TOKEN|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET|PASSWORD|"
    r"PASSWD|PASSPHRASE|CREDENTIAL"
)
_NO_SECRET = ("PWD", "OLDPWD")  # a shell's folders
_IN_ADDRESS = re.compile(r"\w://[^/\s:@]*:([^/\s@]+)@")  # DATABASE_URL=postgres://me:password@host
_SHORTEST = 8  # characters of a secret
_COMMON = ("localhost", "root", "smoke", "laptop", "node", "paper", "timed", "transformer")
_MARK = "***"


def redact(text: str) -> str:
    """The text with `~` for the home folder and `***` for secrets, the user's name in a path and the host's name."""
    for _, secret in _secrets():
        for form in dict.fromkeys((secret, " ".join(secret.split()), repr(secret)[1:-1])):
            text = _without_start(text.replace(form, _MARK), form)
    for home in _homes():
        text = re.sub(_path(home), "~", text)
        if _is_telling(name := re.escape(Path(home).name)):
            text = re.sub(rf"(?<![\w.-]){name}(?=/)|(?<=/){name}(?![\w.-])", _MARK, text)
    host = socket.gethostname()
    for name in dict.fromkeys((host, host.partition(".")[0])):
        if _is_telling(name):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _MARK, text)
    # names of files may hold halves of characters; no reader takes them
    return text.encode(errors="replace").decode()


def redacted(value: Any) -> Any:
    """The same plain value with every text in it redacted, names of fields too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            redact(name) if isinstance(name, str) else name: redacted(part)
            for name, part in value.items()
        }
    return [redacted(part) for part in value] if isinstance(value, list | tuple) else value


def portable(name: str, value: Any) -> Any:
    """A plain value with `~` for the home folder at the start of its texts, as it may be recorded and used elsewhere.

    Raises ValueError, one line, where a text holds a secret, or the home folder elsewhere: that
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
    for where, secret in _secrets():
        if secret in str(value):
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
    """The inverse of `portable` on this machine: `~` and `~/...` become paths below the home folder."""
    if isinstance(value, Mapping):
        return {name: expanded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [expanded(part) for part in value]
    is_path = isinstance(value, str) and (value == "~" or value.startswith("~/"))
    return os.path.expanduser(value) if is_path else value  # noqa: PTH111  (keeps a slash at the end)


def _secrets() -> Iterator[tuple[str, str]]:
    """Where secrets were found, and what they are, the longest first."""
    here = os.environ.items()
    found = [
        (f"the environment variable {name}", value) for name, value in here if _is_secret(name)
    ]
    found += [
        (f"the environment variable {name}", part)
        for name, value in here
        for part in _IN_ADDRESS.findall(value)
    ]
    found += _stored()
    yield from sorted(
        ((n, v) for n, v in found if len(v) >= _SHORTEST), key=lambda pair: -len(pair[1])
    )


def _is_secret(variable: str) -> bool:
    return variable not in _NO_SECRET and _SECRET.search(variable.upper()) is not None


@cache
def _stored() -> list[tuple[str, str]]:
    """What `wandb login` and `hf auth login` have left in the user's files."""
    found = []
    with suppress(OSError, netrc.NetrcParseError, ValueError, RuntimeError):
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        open_regular(path).close()  # a pipe would be waited for
        hosts = netrc.netrc(path).hosts
        found += [
            (f"the password for {host} in your .netrc", hosts[host][2] or "") for host in hosts
        ]
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache_home}/huggingface"
    with suppress(ValueError, RuntimeError):
        path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
        found.append(("your Hugging Face token", read_text(path, SMALL).strip()))
    return found


def _homes() -> list[str]:
    """The home folder as it is named and as it is reached; none where it is the whole disk."""
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home raises where there is none)
    return [
        path for path in dict.fromkeys((home.rstrip("/"), os.path.realpath(home))) if len(path) > 1
    ]


def _path(home: str) -> str:
    """The pattern of a home folder in a text, and not of a longer path that has it in the middle or is only like it."""
    return rf"(?<![\w.~-]){re.escape(home)}(?![\w-])"


def _is_telling(name: str) -> bool:
    """Whether a name of a user or a host says who or where, and is no word of ours."""
    return len(name) > 2 and name.lower() not in _COMMON


def _without_start(text: str, secret: str) -> str:
    """A text that may have been cut inside of a secret, without that beginning of it."""
    cut = next(
        (n for n in range(len(secret) - 1, _SHORTEST // 2, -1) if text.endswith(secret[:n])), 0
    )
    return text[: len(text) - cut] + _MARK * (cut > 0)
