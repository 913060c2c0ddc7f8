"""No secret is recorded or sent: texts, specs, and every byte that a run, its mirror and its report
write."""

import gzip
import sys
from pathlib import Path

import pytest
from fakes import spec

from repro.cli.main import main
from repro.harness.journal import journals
from repro.io.redact import redact, tilde_to_home

SECRETS = {
    "WANDB_API_KEY": "zq7" * 14,
    "HF_TOKEN": "hf_zaphodsOwnToken",
    "MY_SECRET_THING": "two  words\nand 'lines'",
    "DB_PASSWORD": "beeblebrox42",
}
HOME = "zaphods-home"
MINE = """
import os
from pathlib import Path
from torch import nn
from repro.harness.spec import Experiment, Group, sweep

SECRETS = " | ".join(os.environ[name] for name in {names})

def text():
    return f"{{SECRETS}} | {{Path.home()}} | {{Path(__file__).resolve()}}"

class Fails(nn.Linear):
    def forward(self, x):
        x.sum().item()  # so that only real tensors get further
        raise RuntimeError(text())

def layers(root, fail=False):
    assert Path(root).is_dir(), root
    last = Fails if fail else nn.Linear
    return [nn.Flatten, lambda: nn.Linear(3 * 8 * 8, 8), lambda: last(8, 10)]

def experiment(scale="smoke"):
    root = str(Path(__file__).resolve().parent)
    arguments = [{{"root": root, "fail": fail, "image": 8}} for fail in (False, True)]
    runs = sweep(model="import:zaphods:layers", model_args=arguments, K=1, M=1, N=2)
    groups = (Group(name="own", runs=runs),)
    said = {{"title": text(), "question": text(), "paper": text()}}
    return Experiment(name="own", rounds=1, groups=groups, **said)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a name that is easy to find, and an environment full of secrets."""
    made = tmp_path / HOME
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    for elsewhere in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(elsewhere, raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return made


def test_secrets_and_homes_are_removed_and_other_words_are_not(home: Path):
    for value in SECRETS.values():
        for form in (value, " ".join(value.split()), repr(value)[1:-1]):
            assert redact(f"<{form}>") == "<***>"
    assert redact("cut in a hf_zaphodsOwn") == "cut in a ***"
    for text, expected in {
        f"open {home}/x: no, '{home}'": "open ~/x: no, '~'",
        f"{home}2/x /mnt{home}/x": f"{home}2/x /mnt{home}/x",
        "file \udcff": "file ?",
    }.items():
        assert redact(text) == expected
    assert redact({"a": [SECRETS["HF_TOKEN"], 1, None]}) == {"a": ["***", 1, None]}


NAMES = "GITHUB_PAT MYSQL_PWD SLACK_AUTH TOKEN2 AWS_ACCESS_KEY_ID PRIVATE_KEY_PEM".split()


@pytest.mark.parametrize("variable", [*NAMES, "DATABASE_URL"])
def test_what_a_secret_may_be_called(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str):
    secret = "vogonpoetry9"
    value = f"postgres://me:{secret}@host/db" if variable == "DATABASE_URL" else secret
    monkeypatch.setenv(variable, value)
    assert redact(f"a {secret} b") == "a *** b"
    assert redact({secret: [secret]}) == {"***": ["***"]}
    for arguments in ({"a": secret}, {secret: 1}, {"a": {secret: 1}}, {"a": [{"b": secret}]}):
        with pytest.raises(ValueError, match=variable):
            spec(model_args=arguments)


def test_what_logins_keep_in_files_is_secret(home: Path, monkeypatch: pytest.MonkeyPatch):
    (home / ".netrc").write_text("machine api.wandb.ai login user password trillian4242\n")
    (home / ".netrc").chmod(0o600)
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("hf_marvinsToken\n")
    assert redact("trillian4242 hf_marvinsToken") == "*** ***"
    with pytest.raises(ValueError, match=r"the password for api\.wandb\.ai in your \.netrc"):
        spec(model_args={"key": "trillian4242"})
    with pytest.raises(ValueError, match="your Hugging Face token"):
        spec(model_args={"key": "hf_marvinsToken"})


def test_a_path_in_the_home_is_recorded_as_such_and_used_in_full(home: Path):
    one = spec(model_args={"root": f"{home}/data/", "all": [f"{home}", "~/b", "/elsewhere"]})
    assert one.model_args == {"root": "~/data/", "all": ["~", "~/b", "/elsewhere"]}
    assert one.arguments == {"root": f"{home}/data/", "all": [f"{home}", f"{home}/b", "/elsewhere"]}
    assert tilde_to_home("a ~ b") == "a ~ b"


def test_every_byte_of_a_run_its_mirror_and_its_report(home: Path, monkeypatch, capfd):
    """Everything is below the home, results too. Logs of workers stay as they are, since they are
    not committed."""
    (home / "project").mkdir()
    monkeypatch.chdir(home / "project")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("zaphods.py").write_text(MINE.format(names=sorted(SECRETS)))
    run = ["run", "zaphods.py", "--scale", "smoke", "--results", str(Path.cwd() / "results")]
    assert main(run) == 1, "of its two runs one fails"
    (journal,) = journals(Path("results"))
    statuses = " ".join(str(journal.status(run)) for run in journal.runs)
    assert "RuntimeError: *** | *** | *** | *** | ~ | ~/project/zaphods.py" in statuses
    assert '"root":"~/project"' in journal.path.read_text()
    assert main(["report"]) == 0

    lines = SECRETS["MY_SECRET_THING"]
    private = [*SECRETS.values(), HOME, repr(lines)[1:-1], " ".join(lines.split())]
    written = {path for path in Path().rglob("*") if path.is_file() and path.name != "zaphods.py"}
    written -= {*Path().glob("results/*/smoke/logs/**/*"), *Path().glob("__pycache__/*")}
    # The run that does not fail, and the lines of its experiment.
    assert len(list(Path().glob("results/wandb/offline-run-*/*.wandb"))) == 2
    for path in written:
        content = path.read_bytes() + str(path).encode()
        if path.suffix == ".gz":
            content += gzip.decompress(path.read_bytes())
        found = [word for word in private if word.encode() in content]
        assert not found, f"{path}: {found}"
