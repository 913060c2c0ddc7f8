#!/usr/bin/env bash
# hatchling 1.33.0: a folder and a link to it, both included in a source archive, are there once, under the path that is
# walked first. So names decide which of the two is lost, without a warning: with a link package/link to the folder `shared`
# the folder itself is lost, and with one to the folder `apackage` the link is. Whoever builds a wheel from the archive lacks
# one of the two. Seen: one module.py for each, package/link/module.py and apackage/module.py. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" hatchling==1.33.0
cd "$work"
found=""
for target in shared apackage; do
    mkdir -p "$target-project/package" "$target-project/$target"
    cd "$target-project"
    touch package/__init__.py "$target/module.py"
    ln -s "../$target" package/link
    printf '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n' >pyproject.toml
    printf '[project]\nname = "package"\nversion = "1"\n' >>pyproject.toml
    printf '[tool.hatch.build.targets.sdist]\ninclude = ["/package", "/%s"]\n' "$target" >>pyproject.toml
    "$work/venv/bin/python" -m hatchling build -t sdist >/dev/null 2>&1
    found+="$(tar -tf dist/*.tar.gz | grep module.py) "
    cd ..
done
echo "hatchling 1.33.0: $found"
[ "$found" = "package-1/package/link/module.py package-1/apackage/module.py " ]
