"""Removal of secrets from what is recorded or sent, and of the path of the home folder.

What is recorded passes `redact` where it is committed, and W&B's copy before it is sent. A secret
of fewer than `_SHORTEST` characters is not removed, since it may be an ordinary word.
"""

import netrc
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
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

Secrets = tuple[tuple[str, str], ...]  # (place, secret), the longest first


def redact(value: Any) -> Any:
    """A plain value with `***` for secrets and `~` for the home folder, also in names of fields."""
    redactor = _redactor(_secrets(), _homes())
    return _changed(value, lambda part: redactor(part) if isinstance(part, str) else part)


def home_to_tilde(value: Any) -> Any:
    """A plain value with `~` for the home folder at the start of its texts, for use elsewhere.

    Raises:
        ValueError: a part of a line, which names the secret that the value contains.
    """
    return _changed(value, _with_tilde)


def _with_tilde(part: Any) -> Any:
    text = str(part)
    # No secret is shorter, and to list all secrets takes longer than everything else here.
    for place, secret in _secrets() if len(text) >= _SHORTEST else ():
        if secret in text:
            raise ValueError(
                f"contains {place}, which would be recorded: remove it, and let your code read it "
                "there"
            )
    if not isinstance(part, str) or not part.startswith("/"):
        return part
    for home in _homes():
        text = re.sub(rf"^{re.escape(home)}(?=/|$)", "~", text)
    return text


def tilde_to_home(value: Any) -> Any:
    """The inverse: `~` and `~/...` become paths below this machine's home folder."""

    def expanded(part: Any) -> Any:
        is_path = isinstance(part, str) and (part == "~" or part.startswith("~/"))
        return os.path.expanduser(part) if is_path else part  # noqa: PTH111  (keeps a last slash)

    return _changed(value, expanded)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A plain value whose texts and numbers, and the names of whose fields, are changed."""
    if isinstance(value, Mapping):
        return {_changed(name, change): _changed(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(part, change) for part in value]
    return change(value)


@lru_cache(maxsize=2)
def _redactor(secrets: Secrets, homes: tuple[str, ...]) -> Callable[[str], str]:
    # As it is, on one line, and as Python prints it.
    forms = [form for _, s in secrets for form in (s, " ".join(s.split()), repr(s)[1:-1])]
    patterns = [re.escape(form) for form in forms]
    whole_paths = (rf"(?<![\w.~-]){re.escape(home)}(?![\w-])" for home in homes)
    patterns += [f"(?P<home{number}>{path})" for number, path in enumerate(whole_paths)]
    private = re.compile("|".join(patterns) or "(?!)")

    @lru_cache(maxsize=10_000)
    def redactor(text: str) -> str:
        text = private.sub(lambda found: "~" if found.lastgroup else "***", text)
        for form in forms:  # a long text may have been cut inside a secret
            for length in range(len(form) - 1, _SHORTEST // 2, -1):
                if text.endswith(form[:length]):
                    text = text[:-length] + "***"
        # Names of files may hold lone surrogates, which no reader accepts.
        return text.encode(errors="replace").decode()

    return redactor


def _secrets() -> Secrets:
    return _secrets_of(tuple(os.environb.items()))  # as bytes, which takes half as long


@lru_cache(maxsize=2)
def _secrets_of(environment: tuple[tuple[bytes, bytes], ...]) -> Secrets:
    """Those of the environment, and those that `wandb login` and `hf auth login` have stored."""
    secrets = []
    for name, value in (map(os.fsdecode, pair) for pair in environment):
        place = f"the environment variable {name}"
        if name not in _NO_SECRET and _SECRET.search(name.upper()):
            secrets.append((place, value))
        secrets += [(place, password) for password in _IN_ADDRESS.findall(value)]
    with suppress(OSError, netrc.NetrcParseError, ValueError, RuntimeError):
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        open_regular(path).close()  # refuses a pipe, for which netrc would wait
        for host, (_, _, password) in netrc.netrc(path).hosts.items():
            secrets.append((f"the password for {host} in your .netrc", password or ""))
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache_home}/huggingface"
    with suppress(ValueError, RuntimeError):
        path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
        secrets.append(("your Hugging Face token", read_text(path, SMALL).strip()))
    secrets = [(place, secret) for place, secret in secrets if len(secret) >= _SHORTEST]
    return tuple(sorted(secrets, key=lambda pair: -len(pair[1])))


def _homes() -> tuple[str, ...]:
    """The home folder by its name and by its real path; none if it is the root of the disk."""
    home = os.path.expanduser("~")  # noqa: PTH111  (Path.home raises where there is none)
    paths = dict.fromkeys((home.rstrip("/"), os.path.realpath(home)))
    return tuple(path for path in paths if len(path) > 1)
